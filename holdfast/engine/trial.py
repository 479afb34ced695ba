"""Times candidate settings on the real model and data: `python -m holdfast.engine.trial TRIAL_FOLDER`.

Reads settings.json and candidates.json; writes one `CandidateTimed` event for each candidate with its speed, its peak
memory, and the loss and gradient norm of the same examples. Nothing is trained or saved.
"""

import dataclasses
import faulthandler
import gc
import os
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from holdfast.core.event_log import EventLog
from holdfast.core.events import CandidateTimed
from holdfast.core.heartbeat import BeatWriter
from holdfast.core.records import TrialRequest, TrialTiming, require_record
from holdfast.core.runfolder import BEAT, EVENTS
from holdfast.engine.process_setup import prepare_process

_MIN_STEPS, _MAX_STEPS, _MAX_CUDA_STEPS = 2, 12, 600
_FAR_BEHIND = 0.4  # of the best rate; a first step is slower than later ones, but not by this much


def main(folder: Path) -> int:
    """Time every candidate within its share of seconds; return the exit code."""
    faulthandler.enable()
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    beat, events = BeatWriter(folder / BEAT), EventLog(folder / EVENTS, is_logged=True)
    beat.enter("import")
    prepare_process()
    from holdfast.engine.attempt_settings import read_attempt_settings

    settings = read_attempt_settings(folder)
    request = require_record(folder, TrialRequest)
    best = 0.0
    for number, candidate in enumerate(request.candidates):
        beat.enter("load", number, len(request.candidates))
        changed = dataclasses.replace(settings, **candidate)
        try:
            result = _time(changed, request.seconds_each, best, beat, folder, is_reference=not number)
            best = max(best, result.tokens_per_second)
            events.write(CandidateTimed(number=number, candidate=candidate, result=result))
        except Exception as error:  # the other candidates may still work
            failure = f"{type(error).__name__}: {error}"[:300]
            events.write(CandidateTimed(number=number, candidate=candidate, error=failure))
    beat.enter("end")
    return 0


def _time(
    settings: Any, seconds: float, best: float, beat: BeatWriter, folder: Path, *, is_reference: bool
) -> TrialTiming:
    """Time one candidate; `best` is the fastest one so far, in tokens per second."""
    import torch

    from holdfast.engine.data_order import DataOrder
    from holdfast.engine.fast.rng import without_dropout
    from holdfast.engine.optim import clip_gradients
    from holdfast.engine.tasks import load_task

    settings.use_threads()
    _reset_peak()
    task = load_task(settings)
    order = DataOrder(task.lengths, settings.batch_size, settings.seed, settings.pool_batches)
    steps = min(_MAX_STEPS, order.steps_per_epoch)
    task.begin_epoch(0)
    beat.enter("first step")
    first, begun = order.examples(0), time.perf_counter()
    with without_dropout(task.model):  # devices drop different values
        loss = float(task.forward_backward(0, first))
    rate = int(task.lengths[first].sum()) / (time.perf_counter() - begun)
    min_steps = fewest_steps(rate, best)
    norm = float(clip_gradients(task.model.parameters(), 0.0))
    gradient_off = _compare_gradient(task.model, folder, is_reference=is_reference)
    task.model.zero_grad(set_to_none=True)
    step_once, wait = _stepper(task, settings)
    if settings.device != "cpu":  # the first step of each size selects or compiles kernels, or captures a graph
        for step in range(steps):
            beat.enter("step", step, steps)
            step_once(step, order.examples(step))
        wait()
    texts, tokens, done, begun = 0, 0, 0, time.perf_counter()
    most = _MAX_CUDA_STEPS if settings.is_on_cuda else steps
    while done < most and (done < min_steps or time.perf_counter() - begun < seconds):
        beat.enter("step", done, most)
        examples = order.examples(done % steps)
        step_once(done % steps, examples)
        texts, tokens, done = texts + len(examples), tokens + int(task.lengths[examples].sum()), done + 1
    wait()
    taken = time.perf_counter() - begun
    peak = torch.cuda.max_memory_allocated() if settings.is_on_cuda else _peak_bytes()
    is_packed = bool(getattr(task, "is_packed", True))
    del task
    gc.collect()
    return TrialTiming(
        loss=loss,
        norm=norm,
        gradient_off=gradient_off,
        steps=done,
        seconds=round(taken, 4),
        samples_per_second=round(texts / taken, 3),
        tokens_per_second=round(tokens / taken, 1),
        peak_bytes=peak,
        is_packed=is_packed,
    )


def _compare_gradient(model: Any, folder: Path, *, is_reference: bool) -> float | None:
    """The largest difference from the reference's gradient; None without one to compare with."""
    from holdfast.engine.gradient_sample import largest_difference, read_sample, sampled, write_sample

    gradients = ((name, weight.grad) for name, weight in model.named_parameters())
    sample = {name: sampled(gradient.float().cpu().numpy()) for name, gradient in gradients if gradient is not None}
    if is_reference:
        write_sample(folder, sample)
    expected = read_sample(folder)
    return None if expected is None else largest_difference(expected, sample)


def fewest_steps(first_rate: float, best: float) -> int:
    """The minimum number of steps to time: one is enough if the first step was far slower than the best candidate."""
    return 1 if first_rate < _FAR_BEHIND * best else _MIN_STEPS


def _stepper(task: Any, settings: Any) -> tuple[Callable[[int, Any], None], Callable[[], None]]:
    """A function that does one step as a run would, and one that waits until all steps are done."""
    from holdfast.engine.data_order import step_seed
    from holdfast.engine.fast.captured import make_captured
    from holdfast.engine.optim import make_optimizer

    optimizer = make_optimizer(task.model, settings) if settings.is_on_cuda else None
    captured = make_captured(task, settings, optimizer) if optimizer else None
    for group in optimizer.param_groups if optimizer else ():
        group["lr"].fill_(0.0)

    def step_once(step: int, examples: Any) -> None:
        arrays = task.step_arrays(step, examples) if captured else None
        if captured and arrays:
            task.model.train()
            for _ in captured.run(step, arrays, step_seed(settings.seed, step)):
                pass
            return
        loss = task.forward_backward(step, examples)
        task.model.zero_grad(set_to_none=True)
        if settings.device != "cpu":
            float(loss)  # waits for the device

    def wait() -> None:
        for _ in captured.drain() if captured else ():
            pass

    return step_once, wait


def _reset_peak() -> None:
    """Reset the kernel's peak measurement, where possible."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return


def _peak_bytes() -> int:
    try:
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024


if __name__ == "__main__":
    raise SystemExit(main(Path(sys.argv[1])))
