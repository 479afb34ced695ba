"""A supervised run as a Ray task: it returns a result, and continues elsewhere if its machine is lost.

    from holdfast.integrations.ray import run_command, train

    task = run_command.options(num_gpus=1).remote(["python", "train.py"], out="/shared/runs/one", cwd="/shared")
    result = ray.get(task)
    result["state"], result["sentence"]     # "finished", "Finished in 47 s after 1 failed attempt, 60 steps."

The run's folder must be on shared storage. If a machine is lost, Ray restarts the task on another one, and the run
continues from its folder. `ray.cancel(task)` lets the run save and stop. A failed run is reported in its result; a
wrong request raises an error.

The supervisor is the worker process of the task, which does not import torch.
"""

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import ray

from holdfast.core.events import Event
from holdfast.core.runfolder import REQUEST
from holdfast.core.setting_values import make_request as make_train_request
from holdfast.runs.command import command_spec, make_request
from holdfast.runs.event_wording import event_lines
from holdfast.runs.join import has_finished, join_folder
from holdfast.runs.lease import AlreadyHeld
from holdfast.runs.new_train import start_train
from holdfast.runs.state import read_state
from holdfast.runs.stop_signals import asked_by_signals
from holdfast.runs.supervise import Result, StopRequest, supervise
from holdfast.runs.train_run import Guard, resume_train
from holdfast.runs.wording import headline

MAX_RETRIES = 100  # machines and workers that may be lost; how often the run itself may fail is Holdfast's to count
_LOOK_SECONDS = 5.0


def _run_command(
    command: Sequence[str], out: str, *, cwd: str = ".", variables: Mapping[str, str] | None = None, **options: Any
) -> dict[str, Any]:
    """Run a command until it has finished, as `holdfast run --run OUT -- COMMAND` does; options are named as there."""
    run = Path(out).absolute()
    with contextlib.chdir(cwd), _environment(variables or {}):
        request = make_request(tuple(command), nodes=1, **options)
        join_folder(request, run)

        def go_on(guard: Guard) -> Result:
            stop = StopRequest()
            with guard(stop):
                return supervise(run, command_spec(request), _show, stop=stop)

        return _end(run, go_on)


def _train(out: str, **settings: Any) -> dict[str, Any]:
    """Train a model, as `holdfast train DATA --out OUT` does; settings are named as there, `data` among them."""
    run = Path(out).absolute()
    if not (run / REQUEST).exists():
        start_train(make_train_request({**settings, "out": str(run)}))
    return _end(run, lambda guard: resume_train(run, on_event=_show, guard=guard))


run_command = ray.remote(max_retries=MAX_RETRIES)(_run_command)
train = ray.remote(max_retries=MAX_RETRIES)(_train)


def _end(run: Path, go_on: Callable[[Guard], Result]) -> dict[str, Any]:
    """Bring the run to its end, or wait for the supervisor that does: one that Ray lost sight of may well live."""
    asked: list[StopRequest] = []

    def guard(stop: StopRequest) -> contextlib.AbstractContextManager[None]:
        asked.append(stop)
        return asked_by_signals(stop)

    while not has_finished(run):
        try:
            result = go_on(guard)
        except AlreadyHeld as held:
            if any(stop.is_asked for stop in asked):
                raise KeyboardInterrupt from None
            print(f"holdfast: {held.what} ({held.found}); waiting for its end", flush=True)
            time.sleep(_LOOK_SECONDS)
            continue
        if result.state == "stopped":
            raise KeyboardInterrupt  # which is how a cancelled task ends
        break
    state = read_state(run, is_supervised=False)
    return {"run": str(run), **msgspec.to_builtins(state.records.result), "sentence": headline(state)}


@contextlib.contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Set variables for the command, in a worker that other tasks may use after this one."""
    before = dict(os.environ)
    os.environ.update(variables)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def _show(event: Event) -> None:
    """Print what happens; Ray passes on what a worker prints."""
    for line in event_lines(event):
        if not line.is_detail:
            print(f"holdfast: {line.text}", flush=True)
