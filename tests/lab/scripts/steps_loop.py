"""A plain torch loop over `holdfast.steps`: `python steps_loop.py OUTPUT`."""

import os
import signal
import sys
import time
from pathlib import Path

import numpy
import torch

import holdfast

output, fault = Path(sys.argv[1]), os.environ.get("FAULT", "")
output.mkdir(parents=True, exist_ok=True)
torch.set_num_threads(1)
torch.manual_seed(0)
numpy.random.seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Dropout(0.2), torch.nn.Linear(16, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 40)
for step in holdfast.steps(model, optimizer, 80, schedule, save_seconds=0.1):
    print("step", step, flush=True)
    x = torch.randn(32, 8) * float(numpy.random.rand())
    loss = (model(x) - x.sum(1, keepdim=True)).square().mean() / 2
    loss.backward()
    if step % 2:  # gradients of two steps are accumulated
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
    time.sleep(float(os.environ.get("PAUSE", "0.03")))
    if step == 60 and fault and not (output / "happened").exists():
        (output / "happened").touch()
        os.kill(os.getpid(), getattr(signal, fault))
torch.save(model.state_dict(), output / "final.pt")
