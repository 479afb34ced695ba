"""Healthy: compiles a model in the middle of training, which takes many times as long as a step."""

import steps
import torch

model = torch.nn.Sequential(*(torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.GELU()) for _ in range(6)))
data = torch.rand(8, 64)
steps.count_to(20)
compiled = torch.compile(model)
compiled(data).sum().backward()
print("compiled")
