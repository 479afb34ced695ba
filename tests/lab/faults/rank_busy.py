"""Two ranks reduce; after a few steps rank 1 spins and never comes to the collective."""

import os

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
weight = torch.nn.Parameter(torch.ones(1))
optimizer = torch.optim.SGD([weight], lr=0.1)
for step in range(1000):
    if os.environ["RANK"] == "1" and step == 5:
        while True:
            pass
    weight.grad = torch.ones(1)
    dist.all_reduce(weight.grad)
    optimizer.step()
