"""Saves 16 MB of weights to the folder it is given."""

import sys

import steps
import torch

steps.count_to(10)
steps.enter("save")
torch.save({"w": torch.zeros(4 << 20)}, f"{sys.argv[1]}/weights.pt")
