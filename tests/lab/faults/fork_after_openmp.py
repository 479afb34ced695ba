"""Forks after OpenMP threads were started; the child's first parallel region never ends."""

import os

import steps
import torch

torch.set_num_threads(2)
data = torch.rand(1000, 1000)
torch.exp(data)
steps.count_to(20)
child = os.fork()
if child == 0:
    torch.exp(data)
    os._exit(0)
os.waitpid(child, 0)
