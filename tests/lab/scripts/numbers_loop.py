"""A hand-written loop of 300 steps: `python numbers_loop.py OUTPUT KIND`. KIND says what its numbers do.

plain nothing; nan: the loss from step 150 on; healed: the same, and the loop goes back to older weights; scaled: loss
scaling begins too high and skips steps; unused: a weight that takes no part is NaN from the start.
"""

import copy
import sys
import time
from pathlib import Path

import torch

output, kind = Path(sys.argv[1]), sys.argv[2]
torch.set_num_threads(1)
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
if kind == "unused":
    model.register_parameter("spare", torch.nn.Parameter(torch.full((1,), float("nan"))))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
scaler = torch.amp.GradScaler("cpu", init_scale=1e38, enabled=kind == "scaled")
good = copy.deepcopy(model.state_dict())
for step in range(300):
    x = torch.randn(32, 8)
    loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
    if kind in ("nan", "healed") and step == 150:
        loss = loss * float("nan")
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    time.sleep(0.02)
    if kind == "healed" and step == 250:
        model.load_state_dict(good)
torch.save(model.state_dict(), output)
print("finished, scale", scaler.get_scale(), flush=True)
