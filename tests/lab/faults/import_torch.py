"""Healthy: imports torch and multiplies for a while, in steps that become longer."""

import steps

steps.enter("import")
import torch

data = torch.rand(1500, 1500)
for step in range(30):
    steps.enter("step", step + 1)
    for _ in range(1 + step // 2):
        data = torch.nn.functional.normalize(data @ data)
