"""Times classifiers of MiniLM-L6 shape on the CPU, 16 sentences per step: the engine, HF Trainer and Lightning.

Without --model the weights are random, and without --prepared the texts are too, with the lengths of sentences from
medical abstracts (median 34 tokens): neither affects the time of a step. fp32, AdamW, dropout 0.1, clipping at 1.
"""

import argparse
import json
import os
import tempfile
from pathlib import Path

BATCH, LABELS = 16, 5
PEERS = {
    "HF Trainer, padded to 128": ["--pad", "128"],
    "HF Trainer, dynamic padding": [],
    "HF Trainer, grouped by length": ["--grouped"],
    "HF Trainer, grouped, one thread": ["--grouped", "--threads", "1"],
}
# Slower in every test; only with --all, because compiling takes minutes.
MORE_PEERS = {
    "HF Trainer, grouped, 2 processes": ["--grouped", "--threads", "1", "--processes", "2"],
    "HF Trainer, grouped, compiled": ["--grouped", "--compile"],
}
OURS, LIGHTNING = "holdfast", "Lightning, dynamic padding"


def main() -> None:
    """Let the engine and its peers take turns."""
    options = _options()
    if options.worker:
        return WORKERS[options.worker](options)
    from contest import Contestant, contest, report
    from matrix_rate import PRODUCTS, classifier_gflop, shares
    from peers import peer_python

    from holdfast.data.shards import open_tokens

    lightning_python = peer_python("lightning", "lightning==2.6.6", "transformers==5.22.2", "msgspec", "psutil")

    with tempfile.TemporaryDirectory() as name:
        model, prepared = options.model or Path(name) / "model", options.prepared or Path(name) / "prepared"
        if not options.model:
            make_model(model)
        if not options.prepared:
            make_texts(prepared)
        given = [__file__, "--model", str(model), "--prepared", str(prepared)]
        contestants = [
            Contestant(OURS, [*given, "--worker", "ours"]),
            Contestant(PRODUCTS, [*given, "--worker", "products"]),
        ]
        # Helps the peers on a busy machine as much as the engine; see engine.process_setup.
        calm = {"GOMP_SPINCOUNT": "1000"}
        for peer, more in (PEERS | (MORE_PEERS if options.all else {})).items():
            start = ["-m", "torch.distributed.run", "--nproc-per-node", "2"] if "--processes" in more else []
            contestants.append(Contestant(peer, [*start, *given, "--worker", "hf", *more], calm))
        contestants.append(Contestant(LIGHTNING, [*given, "--worker", "lightning"], calm, lightning_python))
        turns = contest(contestants, options.rounds, options.steps, warm_up=12 if options.all else 3)
        tokens = float(open_tokens(prepared, "train").lengths.mean())
        used = shares(turns, classifier_gflop(model, tokens))
    report("classify_cpu", turns, OURS, tokens=tokens, shares=used)


def work_products_alone(options: argparse.Namespace) -> None:
    """Only matrix products."""
    from matrix_rate import work_products

    work_products("cpu", options.threads)


def work_lightning(options: argparse.Namespace) -> None:
    """Lightning on the same texts."""
    from lightning_peer import train

    train(options.model, options.prepared, BATCH, device="cpu", threads=options.threads)


def work_ours(options: argparse.Namespace) -> None:
    """The engine's own loop."""
    from contest import run_engine

    run_engine("classify", options.model, options.prepared, options.threads, batch_size=BATCH)


def work_hf(options: argparse.Namespace) -> None:
    """HF Trainer on the same texts."""
    import torch
    from contest import hf_arguments, paced_trainer
    from transformers import AutoModelForSequenceClassification, Trainer

    from holdfast.data.shards import open_array, open_tokens

    torch.set_num_threads(options.threads)
    texts, labels = open_tokens(options.prepared, "train"), open_array(options.prepared, "train.labels")
    data = [{"input_ids": texts[at].tolist(), "labels": int(labels[at])} for at in range(len(texts))]
    classes = len(json.loads((options.prepared / "manifest.json").read_text())["labels"])
    model = AutoModelForSequenceClassification.from_pretrained(options.model, num_labels=classes)
    if options.compile:
        model.compile(dynamic=True)
    with tempfile.TemporaryDirectory() as folder:
        arguments = hf_arguments(folder, BATCH // options.processes, options.grouped)
        make = paced_trainer(BATCH) if os.environ.get("RANK", "0") == "0" else Trainer
        pad = options.pad
        make(model=model, args=arguments, train_dataset=data, data_collator=lambda rows: collate(rows, pad)).train()


def collate(rows: list[dict], pad: int | None) -> dict:
    """Pad to the longest text of the batch, or truncate and pad to a fixed length."""
    import torch

    longest = pad or max(len(row["input_ids"]) for row in rows)
    ids, mask = torch.zeros(len(rows), longest, dtype=torch.long), torch.zeros(len(rows), longest, dtype=torch.long)
    for at, row in enumerate(rows):
        text = row["input_ids"][:longest]
        ids[at, : len(text)] = torch.tensor(text)
        mask[at, : len(text)] = 1
    return {"input_ids": ids, "attention_mask": mask, "labels": torch.tensor([row["labels"] for row in rows])}


def make_model(folder: Path) -> None:
    """MiniLM-L6 with random weights."""
    import torch
    from transformers import BertConfig, BertModel

    torch.manual_seed(0)
    shape = {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12, "intermediate_size": 1536}
    BertModel(BertConfig(vocab_size=30_522, **shape)).save_pretrained(folder)


def make_texts(folder: Path, count: int = 4000, center: float = 3.5, spread: float = 0.46, longest: int = 200) -> None:
    """Random texts with realistic sentence lengths and vocabulary."""
    import numpy as np

    from holdfast.data.shards import write_tokens

    folder.mkdir(parents=True)
    draws = np.random.default_rng(0)
    lengths = np.clip(np.exp(draws.normal(center, spread, count)).astype(int), 6, longest)
    write_tokens(folder, "train", [(1000 + draws.integers(0, 9000, length)).tolist() for length in lengths])
    np.save(folder / "train.labels.npy", draws.integers(0, LABELS, count))
    manifest = {"task": "classify", "labels": list("abcde"), "multi_label": False, "splits": ["train"]}
    (folder / "manifest.json").write_text(json.dumps(manifest))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path)
    parser.add_argument("--prepared", type=Path)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--worker")
    parser.add_argument("--pad", type=int)
    parser.add_argument("--grouped", action="store_true")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--all", action="store_true", help="also HF Trainer settings that are known to be slower")
    return parser.parse_args()


WORKERS = {"ours": work_ours, "products": work_products_alone, "hf": work_hf, "lightning": work_lightning}

if __name__ == "__main__":
    main()
