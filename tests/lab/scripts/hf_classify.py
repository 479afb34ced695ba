"""Fine-tune a classifier with the Trainer, the way its tutorial does: MODEL OUTPUT [name=value ...]."""

import json
import sys

import torch
from transformers import AutoModelForSequenceClassification, Trainer, TrainingArguments, set_seed

model_folder, output = sys.argv[1:3]
options = {name: json.loads(value) for name, _, value in (word.partition("=") for word in sys.argv[3:])}
set_seed(7)
draws = torch.Generator().manual_seed(1)
ids = torch.randint(1, 100, (96, 12), generator=draws)
rows = [{"input_ids": row, "attention_mask": torch.ones(12, dtype=torch.long), "labels": row[0] % 3} for row in ids]
arguments = {
    "num_train_epochs": 3,
    "per_device_train_batch_size": 8,
    "learning_rate": 1e-3,
    "logging_steps": 4,
    "save_steps": 500,
    "report_to": [],
    "disable_tqdm": True,
    "seed": 7,
    "use_cpu": True,  # hosted Macs report a GPU that cannot be used
} | options
model = AutoModelForSequenceClassification.from_pretrained(model_folder, num_labels=3)
trainer = Trainer(model=model, args=TrainingArguments(output, **arguments), train_dataset=rows, eval_dataset=rows[:16])
trainer.train()
trainer.save_model(f"{output}/final")
print("finished", trainer.evaluate()["eval_loss"])
