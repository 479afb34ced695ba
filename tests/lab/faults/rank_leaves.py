"""One rank of two leaves at step 20, in the way it is told."""

import os
import signal
import sys
import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(2000):
    if dist.get_rank() == 1 and step == 20:
        if sys.argv[1] == "quietly":
            os._exit(0)
        os.kill(os.getpid(), getattr(signal, sys.argv[1]))
    model(torch.randn(2, 4)).sum().backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
    optimizer.step()
    optimizer.zero_grad()
    time.sleep(0.02)
