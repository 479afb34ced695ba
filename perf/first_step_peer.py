"""The Trainer's tutorial as a script, for `first_step.py`: MODEL DATA EVENTS. Writes to EVENTS when a step is done."""

import sys
import time
from pathlib import Path

EPOCHS, BATCH_SIZE = 3, 16


def train(model_folder: Path, data: Path, told: Path) -> None:
    """The same rows, model and settings as Holdfast's run."""
    from datasets import load_dataset
    from transformers import (
        AutoModelForSequenceClassification,
        AutoTokenizer,
        DataCollatorWithPadding,
        Trainer,
        TrainerCallback,
        TrainingArguments,
    )

    class Tell(TrainerCallback):
        def on_step_end(self, *args: object, **kwargs: object) -> None:
            told.write_text(f'{{"event": "step", "time": {time.time():.3f}}}\n')

    rows = load_dataset("csv", data_files=str(data), split="train")
    labels = sorted(set(rows["label"]))
    tokenizer = AutoTokenizer.from_pretrained(model_folder)

    def prepare(batch: dict) -> dict:
        return {
            **tokenizer(batch["text"], truncation=True),
            "labels": [labels.index(label) for label in batch["label"]],
        }

    ready = rows.map(prepare, batched=True, remove_columns=rows.column_names).train_test_split(0.2, seed=42)
    trainer = Trainer(
        model=AutoModelForSequenceClassification.from_pretrained(model_folder, num_labels=len(labels)),
        args=TrainingArguments(
            str(told.with_suffix("")),
            num_train_epochs=EPOCHS,
            per_device_train_batch_size=BATCH_SIZE,
            report_to="none",
            disable_tqdm=True,
            use_cpu=True,
        ),
        train_dataset=ready["train"],
        eval_dataset=ready["test"],
        data_collator=DataCollatorWithPadding(tokenizer),
        callbacks=[Tell()],
    )
    trainer.train()


if __name__ == "__main__":
    train(*map(Path, sys.argv[1:4]))
