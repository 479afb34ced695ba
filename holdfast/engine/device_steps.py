"""Steps of one task on one device: `python -m holdfast.engine.device_steps FOLDER`, a child of `holdfast selftest`.

Reads settings.json. Computes one step and compares its loss and gradients with the CPU's, which the first child of a
folder leaves there; then steps over texts of ever other lengths, and how much memory they take: some devices compile
and keep a graph for each new length (pytorch/pytorch#181485). Nothing is trained or saved.

Each line printed is a JSON object with the next action or a result; after a crash or a hang, the last line says how far
it got.
"""

import faulthandler
import importlib
import importlib.util
import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from numpy.typing import NDArray

from holdfast.engine.attempt_settings import read_attempt_settings
from holdfast.engine.gradient_sample import Sample, largest_difference, read_sample, sampled, write_sample
from holdfast.engine.process_setup import prepare_process

_BATCH = 8
_FIRST_STEPS = 8  # after these, everything that does not depend on the length is in memory


def main(folder: Path, limit_seconds: float) -> int:
    """Do the steps and print the results; return the exit code."""
    faulthandler.enable()
    faulthandler.dump_traceback_later(limit_seconds, exit=True)  # even while a driver call holds the interpreter
    settings = read_attempt_settings(folder)
    _say(doing="import")
    prepare_process()
    from holdfast.engine.tasks import load_task

    _say(doing="load")
    try:
        task = load_task(settings)
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("holdfast.engine.mlx"):
            _say(unsupported=f"{settings.task} is not available on {settings.device}")
            return 0
        raise
    task.begin_epoch(0)
    by_length = np.argsort(task.lengths, kind="stable")
    batches = [by_length[at : at + _BATCH] for at in range(0, len(by_length) - _BATCH + 1, _BATCH)]
    _say(doing="first step")
    loss, gradients = _gradients(task, 0, np.sort(by_length[:: len(by_length) // _BATCH][:_BATCH]))
    _say(loss=loss, values=sum(map(len, gradients.values())))
    _say(gradient_off=_compare(folder, gradients, is_reference=settings.device == "cpu"))
    if settings.device == "cpu":
        _say(devices=_devices())
    order = np.random.default_rng(0).permutation(len(batches))
    first_bytes, begun = 0, time.perf_counter()
    for done, at in enumerate(order):
        _say(doing=f"step {done + 1} of {len(order)}")
        _loss_of(task, done, batches[at])
        if done + 1 == _FIRST_STEPS:
            first_bytes, begun = _bytes_used(settings.device), time.perf_counter()
    seconds = time.perf_counter() - begun
    steps = len(order) - _FIRST_STEPS
    _say(steps=steps, seconds=round(seconds, 3), first_bytes=first_bytes, last_bytes=_bytes_used(settings.device))
    return 0


def _devices() -> list[str]:
    """The accelerators that torch and MLX can use here; one of several CUDA cards stands for all."""
    import torch

    found = ["cuda:0"] if torch.cuda.is_available() else []
    found += ["mps"] if torch.backends.mps.is_available() else []
    has_mlx = importlib.util.find_spec("holdfast.engine.mlx") and importlib.util.find_spec("mlx")
    return [*found, "mlx"] if has_mlx else found


def _gradients(task: Any, step: int, examples: NDArray[np.int64]) -> tuple[float, Sample]:
    """The loss of a step, and values of its gradient under the names of the torch backend."""
    if hasattr(task, "loss_and_gradients"):
        single = importlib.import_module("mlx.core").float32
        loss, found = task.loss_and_gradients(step, examples)
        return float(loss.item()), {name: sampled(np.array(array.astype(single))) for name, array in found.items()}
    loss = float(task.forward_backward(step, examples))
    weights = ((name, weight.grad) for name, weight in task.model.named_parameters())
    sample = {name: sampled(gradient.float().cpu().numpy()) for name, gradient in weights if gradient is not None}
    task.model.zero_grad(set_to_none=True)
    return loss, sample


def _loss_of(task: Any, step: int, examples: NDArray[np.int64]) -> float:
    """Do a step and wait for it."""
    if hasattr(task, "loss_and_gradients"):
        return float(task.loss_and_gradients(step, examples)[0].item())
    loss = float(task.forward_backward(step, examples))
    task.model.zero_grad(set_to_none=True)
    return loss


def _compare(folder: Path, sample: Sample, *, is_reference: bool) -> float | None:
    """The largest difference from the CPU's gradient; None if there is none to compare with."""
    if is_reference:
        write_sample(folder, sample)
        return None
    expected = read_sample(folder)
    return None if expected is None else largest_difference(expected, sample)


def _bytes_used(device: str) -> int:
    """Memory held for a device; that of the process where the device has none of its own."""
    if device == "mlx":
        mx: Any = importlib.import_module("mlx.core")
        return int(mx.get_active_memory() + mx.get_cache_memory())
    import torch

    if device == "mps":
        return int(torch.mps.driver_allocated_memory())
    if device.startswith("cuda"):
        return int(torch.cuda.memory_reserved())
    return int(psutil.Process().memory_info().rss)


def _say(**words: object) -> None:
    print(json.dumps(words), flush=True)


if __name__ == "__main__":
    raise SystemExit(main(Path(sys.argv[1]), float(sys.argv[2])))
