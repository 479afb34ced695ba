"""Compares what is learned: the engine and HF Trainer on the same rows, seeds and settings, accuracy on the test split.

Give a prepared dataset with a test split and a model. Each run is a process of its own; the engine's is a real attempt.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SETTINGS = {"batch_size": 16, "lr": 5e-5, "weight_decay": 0.01, "warmup_ratio": 0.06}


def main() -> None:
    """Train with each seed, print the accuracies and their means."""
    options = _options()
    if options.worker:
        return work_hf(options)
    found: dict[str, list[float]] = {"holdfast": [], "HF Trainer": []}
    for seed in options.seeds:
        for who, train in (("holdfast", run_ours), ("HF Trainer", run_hf)):
            begun = time.perf_counter()
            found[who].append(train(options, seed))
            print(f"seed {seed}: {who} {found[who][-1]:.4f} ({time.perf_counter() - begun:.0f} s)", flush=True)
    from contest import write_ledger

    for who, values in found.items():
        spread = statistics.stdev(values) if len(values) > 1 else 0.0
        print(f"{who:<12} accuracy {statistics.mean(values):.4f}, standard deviation {spread:.4f}, {len(values)} seeds")
    write_ledger("classify_accuracy", "mean accuracy", {who: (statistics.mean(v), len(v)) for who, v in found.items()})


def run_ours(options: argparse.Namespace, seed: int) -> float:
    """One attempt of the engine."""
    with tempfile.TemporaryDirectory() as run:
        attempt = Path(run) / "attempts" / "01"
        attempt.mkdir(parents=True)
        places = {"task": "classify", "model": str(options.model), "prepared": str(options.prepared), "run": run}
        settings = {**places, **SETTINGS, "seed": seed, "epochs": options.epochs, "keep": "last"}
        (attempt / "settings.json").write_text(json.dumps(settings))
        subprocess.run([sys.executable, "-m", "holdfast.engine", str(attempt)], check=True, stderr=subprocess.DEVNULL)
        return float(json.loads((Path(run) / "metrics.json").read_text())["test"]["accuracy"])


def run_hf(options: argparse.Namespace, seed: int) -> float:
    """One run of HF Trainer."""
    command = [sys.executable, __file__, "--model", str(options.model), "--prepared", str(options.prepared)]
    command += ["--seeds", str(seed), "--epochs", str(options.epochs), "--worker"]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    return float(done.stdout.split("ACCURACY ")[1])


def work_hf(options: argparse.Namespace) -> None:
    """HF Trainer with dynamic padding."""
    import numpy as np
    from classify_cpu import collate
    from transformers import AutoModelForSequenceClassification, Trainer, TrainingArguments, set_seed

    from holdfast.data.shards import open_array, open_tokens

    def rows(split: str) -> list[dict]:
        texts, labels = open_tokens(options.prepared, split), open_array(options.prepared, f"{split}.labels")
        return [{"input_ids": texts[at].tolist(), "labels": int(labels[at])} for at in range(len(texts))]

    labels = json.loads((options.prepared / "manifest.json").read_text())["labels"]
    set_seed(options.seeds[0])
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            per_device_train_batch_size=SETTINGS["batch_size"],
            per_device_eval_batch_size=64,
            num_train_epochs=options.epochs,
            learning_rate=SETTINGS["lr"],
            weight_decay=SETTINGS["weight_decay"],
            warmup_steps=SETTINGS["warmup_ratio"],
            seed=options.seeds[0],
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            use_cpu=True,
        )
        model = AutoModelForSequenceClassification.from_pretrained(options.model, num_labels=len(labels))
        trainer = Trainer(
            model=model, args=arguments, train_dataset=rows("train"), data_collator=lambda batch: collate(batch, None)
        )
        trainer.train()
        found = trainer.predict(rows("test"))
    print("ACCURACY", float((np.argmax(found.predictions, 1) == found.label_ids).mean()))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--prepared", type=Path, required=True)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--worker", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    main()
