"""Fit a small network with Lightning, the way its first page does: OUTPUT [name=value ...] for the Trainer."""

import json
import sys

import lightning
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Classifier(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.network = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 3))

    def training_step(self, batch, batch_idx):
        inputs, labels = batch
        loss = nn.functional.cross_entropy(self.network(inputs), labels)
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        inputs, labels = batch
        self.log("val_loss", nn.functional.cross_entropy(self.network(inputs), labels))

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-2)


output = sys.argv[1]
options = {name: json.loads(value) for name, _, value in (word.partition("=") for word in sys.argv[2:])}
lightning.seed_everything(3)
inputs = torch.randn(160, 16, generator=torch.Generator().manual_seed(1))
rows = TensorDataset(inputs, inputs.argmax(1) % 3)
workers = options.pop("workers", 0)
trainer = lightning.Trainer(**{"default_root_dir": output, "max_epochs": 3, "enable_progress_bar": False} | options)
trainer.fit(
    model := Classifier(),
    DataLoader(rows, batch_size=8, shuffle=True, num_workers=workers),
    DataLoader(rows, batch_size=64),
)
torch.save(model.state_dict(), f"{output}/final.pt")
print("finished", trainer.global_step)
