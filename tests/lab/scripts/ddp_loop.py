"""Two processes with DistributedDataParallel, for torchrun or accelerate launch."""

import os

import torch
from torch import distributed, nn

distributed.init_process_group("gloo")
torch.manual_seed(0)
model = nn.parallel.DistributedDataParallel(nn.Linear(4, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(9):
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
print("finished", os.environ["RANK"])
distributed.destroy_process_group()
