"""Lightning's Trainer as a contestant: a classifier on the texts that the engine has prepared."""

import json
import logging
import math
import warnings
from pathlib import Path

import lightning
import torch
from accuracy_peers import labelled
from contest import Pace
from torch.utils.data import DataLoader
from transformers import AutoModelForSequenceClassification

from holdfast.data.shards import open_array, open_tokens


def train(model: Path, prepared: Path, batch: int, *, device: str, threads: int | None) -> None:
    """Train in turns until stopped: fp32 on a CPU, bf16 on a card; clipping and optimizer as in the others."""
    warnings.filterwarnings("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    if threads:
        torch.set_num_threads(threads)
    texts, labels = open_tokens(prepared, "train"), open_array(prepared, "train.labels")
    rows = [{"input_ids": texts[at], "labels": labels[at]} for at in range(len(texts))]
    classes = len(json.loads((prepared / "manifest.json").read_text())["labels"])
    loader = DataLoader(rows, batch_size=batch, shuffle=True, drop_last=True, collate_fn=labelled)  # type: ignore[arg-type]  # a list is a dataset
    trainer = lightning.Trainer(
        accelerator="cpu" if device == "cpu" else "gpu",
        devices=1,
        precision="32-true" if device == "cpu" else "bf16-mixed",
        max_epochs=1000,
        gradient_clip_val=1.0,
        callbacks=[_Paced(batch)],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(_Classifier(model, classes, 1000 * math.ceil(len(rows) / batch)), loader)


class _Classifier(lightning.LightningModule):
    def __init__(self, folder: Path, classes: int, steps: int):
        super().__init__()
        self.model = AutoModelForSequenceClassification.from_pretrained(folder, num_labels=classes, dtype=torch.float32)
        self.steps = steps

    def training_step(self, batch: dict[str, torch.Tensor], _: int) -> torch.Tensor:
        loss: torch.Tensor = self.model(**batch).loss
        return loss

    def configure_optimizers(self) -> object:
        is_fused = self.device.type == "cpu"  # in mixed precision Lightning clips no gradients of a fused optimizer
        optimizer = torch.optim.AdamW(self.model.parameters(), lr=5e-5, weight_decay=0.01, fused=is_fused)
        schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, self.steps)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


class _Paced(lightning.Callback):
    def __init__(self, batch: int):
        self._batch, self._pace = batch, Pace()

    def on_train_start(self, *_: object) -> None:
        self._pace.start()

    def on_train_batch_end(self, *_: object) -> None:
        self._pace.step(self._batch)
