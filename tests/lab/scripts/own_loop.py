"""A hand-written loop that saves and loads its own checkpoints: `python own_loop.py OUTPUT [--resume]`."""

import ctypes
import os
import signal
import sys
import time
from pathlib import Path

import torch

output, fault = Path(sys.argv[1]), os.environ.get("FAULT", "")
output.mkdir(parents=True, exist_ok=True)
torch.set_num_threads(1)
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
first, checkpoint = 0, output / "checkpoint.pt"
if "--resume" in sys.argv and (checkpoint.exists() or "STRICT" in os.environ):
    state = torch.load(checkpoint)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    first = state["step"]
    print("resumed at", first, flush=True)
for step in range(first, int(os.environ.get("STEPS", "200"))):
    draws = torch.Generator().manual_seed(step)
    x = torch.randn(32, 8, generator=draws)
    loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    time.sleep(float(os.environ.get("PAUSE", "0.01")))
    if step % 20 == 19:
        draft = output / "draft.pt"
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step + 1}, draft)
        draft.replace(checkpoint)
    if step == int(os.environ.get("FAULT_AT", "90")) and fault and not (output / "happened").exists():
        (output / "happened").touch()
        if fault == "segfault":
            ctypes.string_at(0)
        if fault == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if fault == "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        if fault == "sleep":
            time.sleep(10_000)
torch.save(model.state_dict(), output / "final.pt")
print("saved", flush=True)
