"""A Trainer script of the kind its documentation shows: `python hf_tiny.py OUTPUT [steps]`. FAULT says what goes wrong.

Each fault but the first happens once: a file in the output folder says that it has been.
"""

import ctypes
import multiprocessing
import os
import sys
import threading
from pathlib import Path

import torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainerCallback, TrainingArguments

output, steps = Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 60
fault = os.environ.get("FAULT", "")
workers = int(os.environ.get("WORKERS", "0"))


if workers and multiprocessing.get_start_method(allow_none=True) is None and sys.platform == "darwin":
    multiprocessing.set_start_method("fork")  # as on Linux: the lock of the dataset cannot be pickled


class Texts(torch.utils.data.Dataset):
    """Random texts whose label is their first token's parity."""

    def __init__(self, count: int = 400):
        draws = torch.Generator().manual_seed(0)
        self.ids = torch.randint(1, 100, (count, 16), generator=draws)
        self.lock, self.served = threading.Lock(), 0

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, at: int) -> dict:
        self.served += 1
        # Two workers, four texts a step: each has served 80 when step 40 is over.
        if fault == "loader deadlock" and torch.utils.data.get_worker_info() and self.served > 80:
            self.lock.acquire()
            self.lock.acquire()
        return {"input_ids": self.ids[at], "labels": int(self.ids[at, 0]) % 2}


def once(name: str) -> bool:
    """True the first time in this output folder."""
    try:
        (output / f"{name}.happened").touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


class Faults(TrainerCallback):
    """What goes wrong at step 25."""

    def on_step_end(self, args, state, control, model=None, **kwargs):
        if state.global_step != 25:
            return
        if fault == "segfault" and once("segfault"):
            ctypes.string_at(0)
        if fault == "abort" and once("abort"):
            ctypes.CDLL(None).abort()
        if fault == "nan" and once("nan"):
            with torch.no_grad():
                next(model.parameters()).fill_(float("nan"))
        if fault == "livelock" and once("livelock"):
            while True:
                pass
        if fault == "value error":
            raise ValueError("the batch is odd")


def collate(examples: list[dict]) -> dict:
    """Stack the examples; under "memory" each example also takes 40 MB for as long as the step lasts."""
    global held
    held = [torch.ones(10_000_000) for _ in examples] if fault == "memory" else []
    labels = torch.tensor([example["labels"] for example in examples])
    return {"input_ids": torch.stack([example["input_ids"] for example in examples]), "labels": labels}


output.mkdir(parents=True, exist_ok=True)
torch.set_num_threads(1)
torch.manual_seed(0)
config = BertConfig(
    vocab_size=100, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64, num_labels=2
)
trainer = Trainer(
    model=BertForSequenceClassification(config),
    args=TrainingArguments(
        output_dir=str(output),
        max_steps=steps,
        per_device_train_batch_size=int(os.environ.get("BATCH", "4")),
        dataloader_num_workers=workers,
        save_steps=10,
        logging_steps=5,
        learning_rate=1e-3,
        seed=1,
        use_cpu=True,  # hosted Macs report a GPU that cannot be used
        report_to=[],
        disable_tqdm=True,
    ),
    train_dataset=Texts(),
    data_collator=collate,
    callbacks=[Faults()],
)
trainer.train()
trainer.save_model(str(output / "final"))
print("saved", flush=True)
