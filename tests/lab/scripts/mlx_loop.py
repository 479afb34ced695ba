"""A loop written by hand with MLX, 60 steps: `python mlx_loop.py OUTPUT KIND`. KIND says how it is written.

eager: nothing is compiled, and only the loss is read; compiled: each step is, also those that only add up gradients;
nan: compiled, and the loss is NaN from step 20 on; asleep: stands still for good after step 30.
"""

import sys
import threading
import time
from functools import partial

import mlx.core as mx
import mlx.nn as nn
import mlx.optimizers as optim
from mlx.utils import tree_map

output, kind = sys.argv[1:]
mx.random.seed(0)
model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
optimizer = optim.SGD(learning_rate=0.01)
loss_and_grad = nn.value_and_grad(
    model, lambda model, x, factor: (factor * (model(x) - x.sum(1, keepdims=True)) ** 2).mean()
)


def step(x, factor, kept, updates):
    loss, gradients = loss_and_grad(model, x, factor)
    if kept is not None:
        gradients = tree_map(lambda one, other: one + other, gradients, kept)
    if updates:
        optimizer.update(model, gradients)
        gradients = None
    return loss, gradients


state = [model.state, optimizer.state]
if kind != "eager":
    step = partial(mx.compile, inputs=state, outputs=state)(step)
kept = None
for number in range(60 if kind == "eager" else 120):
    factor = mx.array(float("nan") if kind == "nan" and number >= 40 else 1.0)
    loss, kept = step(mx.random.normal((4, 8)), factor, kept, kind == "eager" or number % 2 == 1)
    if kind == "eager":
        print(loss.item())
    else:
        mx.eval(state, loss, kept)
    time.sleep(0.02)
    if kind == "asleep" and number == 60:
        lock = threading.Lock()
        lock.acquire()
        lock.acquire()
model.save_weights(output)
