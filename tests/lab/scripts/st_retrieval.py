"""Train an embedding model on question-answer pairs with in-batch negatives: MODEL OUTPUT [name=value ...]."""

import json
import sys

from datasets import Dataset
from sentence_transformers import (
    SentenceTransformer,
    SentenceTransformerTrainer,
    SentenceTransformerTrainingArguments,
    losses,
)

model_folder, output = sys.argv[1:3]
options = {name: json.loads(value) for name, _, value in (word.partition("=") for word in sys.argv[3:])}
loss_name = options.pop("loss", "MultipleNegativesRankingLoss")
pairs = {"anchor": [], "positive": []}
for number in range(64):
    pairs["anchor"].append(f"w{number} w{number + 1} w{number + 2}")
    pairs["positive"].append(f"w{number + 2} w{number} w{number + 5} w9")
model = SentenceTransformer(model_folder, device="cpu")
arguments = {"num_train_epochs": 2, "per_device_train_batch_size": 8, "learning_rate": 1e-3, "report_to": []}
arguments |= {"use_cpu": True} | options  # hosted Macs report a GPU that cannot be used
trainer = SentenceTransformerTrainer(
    model=model,
    args=SentenceTransformerTrainingArguments(output, **arguments),
    train_dataset=Dataset.from_dict(pairs),
    loss=getattr(losses, loss_name)(model),
)
trainer.train()
model.save_pretrained(f"{output}/final")
print("finished", trainer.state.global_step)
