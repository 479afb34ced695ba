"""Two ranks that average their gradients, under torchrun: `ranks.py OUTPUT`. FAULT says what rank 1 does at step 30."""

import os
import signal
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

output, fault = Path(sys.argv[1]), os.environ.get("FAULT", "")
output.mkdir(parents=True, exist_ok=True)
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.set_num_threads(1)
torch.manual_seed(0)
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
first, checkpoint = 0, output / "checkpoint.pt"
if checkpoint.exists():
    state = torch.load(checkpoint)
    model.load_state_dict(state["model"])
    first = state["step"]
for step in range(first, int(os.environ.get("STEPS", "60"))):
    x = torch.randn(16, 8, generator=torch.Generator().manual_seed(2 * step + rank))
    loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
    optimizer.step()
    time.sleep(float(os.environ.get("PAUSE", "0.02")))
    if rank == 0 and step % 10 == 9:
        torch.save({"model": model.state_dict(), "step": step + 1}, output / "draft.pt")
        (output / "draft.pt").replace(checkpoint)
    if rank == 1 and step == 30 and fault and not (output / "happened").exists():
        (output / "happened").touch()
        if fault == "dies":
            os.kill(os.getpid(), signal.SIGSEGV)
        while True:  # hangs
            time.sleep(1)
if rank == 0:
    torch.save(model.state_dict(), output / "final.pt")
