"""Times classifiers of BERT-base shape on a CUDA card: our steps and HF Trainer's, in one process, interleaved.

Texts have log-normal lengths (mean 92 tokens, 95th percentile 231); 32 texts a step; bf16; AdamW; dropout on. HF
Trainer runs as most people run it, and tuned (tf32, grouped by length, padded to 64, fused optimizer, compiled).
"""

import json
import math
import os
import statistics
import sys
import tempfile
import time
import warnings
from pathlib import Path

import numpy as np
import torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

from holdfast.data.shards import write_tokens
from holdfast.engine.captured import CapturedSteps
from holdfast.engine.optim import make_optimizer
from holdfast.engine.order import Order, step_seed
from holdfast.engine.settings import Settings
from holdfast.engine.tasks import load_task

warnings.filterwarnings("ignore")
os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"  # read at the first matrix product; our steps are deterministic

TEXTS, BATCH, LABELS = 6400, 32, 5
STEPS, ROUNDS = int(os.environ.get("STEPS", "150")), int(os.environ.get("ROUNDS", "3"))


def make_data(folder: Path) -> tuple[list[list[int]], np.ndarray]:
    """Random texts of realistic lengths, prepared for the engine."""
    draws = np.random.default_rng(0)
    lengths = np.clip(np.exp(draws.normal(np.log(72), 0.71, TEXTS)).astype(int), 8, 512)
    texts = [draws.integers(1000, 30_000, length).tolist() for length in lengths]
    labels = draws.integers(0, LABELS, TEXTS)
    folder.mkdir()
    write_tokens(folder, "train", texts)
    np.save(folder / "train.labels.npy", labels)
    names = [str(label) for label in range(LABELS)]
    (folder / "manifest.json").write_text(json.dumps({"labels": names, "multi_label": False, "splits": ["train"]}))
    return texts, labels


class Ours:
    """The engine's captured steps."""

    def __init__(self, folder: Path, compile_layers: bool):
        self.settings = Settings(
            task="classify",
            model=str(folder / "model"),
            prepared=str(folder / "prepared"),
            run=str(folder),
            batch_size=BATCH,
            lr=2e-5,
            device="cuda",
            precision="bf16",
            micro_tokens=10**9,
            compile=compile_layers,
        )
        begun = time.perf_counter()
        torch.use_deterministic_algorithms(True)
        self.task = load_task(self.settings)
        self.task.model.train()
        self.order = Order(self.task.lengths, BATCH, self.settings.seed)
        self.steps = CapturedSteps(self.task.step_loss, make_optimizer(self.task.model, self.settings), 1.0, "cuda")
        self.at = 0
        self.run(100)  # every size is captured
        self.setup_seconds = time.perf_counter() - begun
        torch.use_deterministic_algorithms(False)

    def run(self, count: int) -> float:
        """Do so many steps; give texts a second."""
        torch.use_deterministic_algorithms(True)
        torch.cuda.synchronize()
        begun = time.perf_counter()
        for _ in range(count):
            arrays = self.task.step_arrays(self.at, self.order.examples(self.at))
            for result in self.steps.run(self.at, arrays, step_seed(42, self.at)):
                assert math.isfinite(result.loss + result.norm), result
            self.at += 1
        for _ in self.steps.drain():
            pass
        torch.cuda.synchronize()
        torch.use_deterministic_algorithms(False)
        return count * BATCH / (time.perf_counter() - begun)


def hf_trainer(folder: Path, texts: list[list[int]], labels: np.ndarray, steps: int, tuned: bool) -> float:
    """Texts a second of HF Trainer, without its start-up."""
    data = [{"input_ids": text, "labels": int(label)} for text, label in zip(texts, labels, strict=True)]
    multiple = 64 if tuned else 1

    def collate(rows: list[dict]) -> dict[str, torch.Tensor]:
        longest = -(-max(len(row["input_ids"]) for row in rows) // multiple) * multiple
        ids, mask = torch.zeros(len(rows), longest, dtype=torch.long), torch.zeros(len(rows), longest, dtype=torch.long)
        for at, row in enumerate(rows):
            ids[at, : len(row["input_ids"])] = torch.tensor(row["input_ids"])
            mask[at, : len(row["input_ids"])] = 1
        return {"input_ids": ids, "attention_mask": mask, "labels": torch.tensor([row["labels"] for row in rows])}

    more = {"tf32": True, "optim": "adamw_torch_fused", "train_sampling_strategy": "group_by_length"} if tuned else {}
    marks: list[float] = []
    warm = 60 if tuned else 20
    arguments = TrainingArguments(
        output_dir=str(folder / "hf"),
        per_device_train_batch_size=BATCH,
        max_steps=steps + warm,
        learning_rate=2e-5,
        bf16=True,
        logging_steps=10**6,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        torch_compile=tuned and bool(int(os.environ.get("HF_COMPILE", "1"))),
        **more,
    )

    class Timed(Trainer):
        def training_step(self, *args, **kwargs):
            torch.cuda.synchronize() if len(marks) in (warm, warm + steps - 1) else None
            marks.append(time.perf_counter())
            return super().training_step(*args, **kwargs)

    torch.manual_seed(0)
    model = BertForSequenceClassification(BertConfig(num_labels=LABELS))
    Timed(model=model, args=arguments, train_dataset=data, data_collator=collate).train()
    return (steps - 1) * BATCH / (marks[warm + steps - 1] - marks[warm])


def main() -> None:
    """Interleave, print medians and ratios."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        texts, labels = make_data(folder / "prepared")
        torch.manual_seed(0)
        BertForSequenceClassification(BertConfig(num_labels=LABELS)).save_pretrained(folder / "model")
        ours = {"ours, captured": Ours(folder, False), "ours, compiled and captured": Ours(folder, True)}
        for who, engine in ours.items():
            print(f"{who}: set up in {engine.setup_seconds:.1f} s, {len(engine.steps._graphs)} graphs", flush=True)
        rates: dict[str, list[float]] = {}
        for _ in range(ROUNDS):
            for who, engine in ours.items():
                rates.setdefault(who, []).append(engine.run(STEPS))
            rates.setdefault("HF Trainer, common", []).append(hf_trainer(folder, texts, labels, STEPS // 2, False))
            rates.setdefault("HF Trainer, tuned", []).append(hf_trainer(folder, texts, labels, STEPS, True))
            print({who: round(found[-1]) for who, found in rates.items()}, flush=True)
        medians = {who: statistics.median(found) for who, found in rates.items()}
        for who, rate in medians.items():
            ratios = ", ".join(f"{rate / medians[peer]:.2f}x {peer}" for peer in medians if peer.startswith("HF"))
            print(f"{who:<30} {rate:7.0f} texts/s   {ratios}")
        print("RESULT " + json.dumps({"torch": torch.__version__, "card": torch.cuda.get_device_name(), **medians}))


if __name__ == "__main__":
    sys.exit(main())
