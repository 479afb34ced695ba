"""Hands a run's figures to the trackers people have: TensorBoard, MLflow, Weights & Biases, Trackio.

A follower in a process of its own reads the events that the run writes and hands them on. A tracker that is slow, asks
for a login or breaks can therefore neither hold up nor end a training run; what it said is in RUN/trackers.log. A step
that was done again after a crash is told once.

    python -m holdfast.runs.trackers RUN tensorboard,mlflow      follows until RUN has a result, or its parent is gone
"""

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

from holdfast.core.errors import RequestError
from holdfast.core.runfolder import RESULT
from holdfast.core.text import closest
from holdfast.runs.story import Story, read_story

LOG = "trackers.log"
_LOOK_EVERY_SECONDS = 2.0
_REST = 20  # times as long as looking took: a long run has many events, and the cores are for training
_LAST_WORDS_SECONDS = 20.0  # for handing on what came at the very end
_NAMES = {
    "loss": "loss",
    "lr": "learning_rate",
    "learning_rate": "learning_rate",
    "norm": "grad_norm",
    "grad_norm": "grad_norm",
}


def require_trackers(names: Sequence[str]) -> None:
    """Refuse trackers that are unknown or not installed, each with what to do about it."""
    for name in names:
        if name not in WRITERS:
            guess = closest(name, WRITERS)
            hint = (f"did you mean {guess}?",) if guess else ()
            raise RequestError(f"there is no tracker {name!r}", seen=f"known: {', '.join(WRITERS)}", try_next=hint)
    missing = [name for name in names if find_spec(name) is None]
    if missing:
        raise RequestError(
            f"--report-to names {missing[0]}, which is not installed",
            seen=f"no {missing[0]} in {sys.prefix}",
            try_next=(f"pip install {' '.join(missing)}",),
        )


@contextmanager
def tracking(run: Path, names: Sequence[str]) -> Iterator[None]:
    """While this holds, the run's figures go to these trackers; what is left is handed on at the end."""
    if not names:
        yield
        return
    with (run / LOG).open("ab") as log:
        follower = subprocess.Popen(
            [sys.executable, "-m", "holdfast.runs.trackers", str(run), ",".join(names)],
            stdin=subprocess.PIPE,  # closes when this process ends, however it ends
            stdout=log,
            stderr=log,
            start_new_session=True,  # Ctrl-C is for the run; the follower hands on what comes of it
        )
    try:
        yield
    finally:
        assert follower.stdin is not None
        with contextlib.suppress(OSError):
            follower.stdin.close()
        try:
            follower.wait(_LAST_WORDS_SECONDS)
        except subprocess.TimeoutExpired:
            follower.kill()
            follower.wait()


@dataclass
class Figures:
    """The figures of a run that were not handed on yet."""

    told_step: int = 0
    told_evaluations: set[int] = field(default_factory=set)

    def new(self, story: Story) -> Iterator[tuple[int, float, dict[str, float]]]:
        """Step, time and figures, in the order of the steps: W&B drops what comes for an earlier one."""
        found: list[tuple[int, float, dict[str, float]]] = []
        for step, event in story.steps.items():
            if step > self.told_step:
                self.told_step = step
                values = {f"train/{_NAMES[key]}": float(event[key]) for key in _NAMES if _is_number(event.get(key))}
                found.append((step, _time(event), values))
        for step, metrics in story.evaluations.items():
            if step not in self.told_evaluations:
                self.told_evaluations.add(step)
                found.append((step, time.time(), {f"eval/{name}": value for name, value in metrics.items()}))
        yield from sorted(found, key=lambda one: one[0])


def follow(run: Path, names: Sequence[str], is_over: Callable[[], bool], every_seconds: float) -> None:
    """Hand on figures until it is over, and then what is left."""
    story, figures = read_story(run), Figures()
    while not story.settings and not is_over():
        time.sleep(every_seconds)
        story = read_story(run)
    writers = list(_opened(run, names, story))
    while writers:
        is_last, begun = is_over(), time.monotonic()
        story = read_story(run)
        for step, at, values in figures.new(story):
            writers = [writer for writer in writers if _told(writer, step, at, values)]
        if is_last:
            break
        time.sleep(max(every_seconds, _REST * (time.monotonic() - begun)))
    state = str(story.result.get("state") or "stopped")
    for writer in writers:
        with _passed_over(type(writer).__name__):
            writer.close(state, _final(story))


def main(run: Path, names: Sequence[str]) -> int:
    """Follow a run until its parent closes standard input, or it has a result."""
    os.set_blocking(0, False)

    def is_over() -> bool:
        try:
            return os.read(0, 1) == b"" or (run / RESULT).is_file()
        except BlockingIOError:
            return (run / RESULT).is_file()

    follow(run, names, is_over, _LOOK_EVERY_SECONDS)
    return 0


def _opened(run: Path, names: Sequence[str], story: Story) -> Iterator["Writer"]:
    settings = {key: value for key, value in story.settings.items() if not isinstance(value, dict)}
    for name in names:
        with _passed_over(name):
            yield WRITERS[name](run, settings)


def _told(writer: "Writer", step: int, at: float, values: Mapping[str, float]) -> bool:
    """Hand on some figures; a writer that fails is told nothing more."""
    is_told = False
    with _passed_over(type(writer).__name__):
        writer.write(step, at, values)
        is_told = True
    return is_told


def _final(story: Story) -> dict[str, float]:
    """The figures of the finished model."""
    return {
        f"{split}/{name}": float(value)
        for split in ("validation", "test")
        for name, value in (story.metrics.get(split) or {}).items()
        if _is_number(value)
    }


@contextmanager
def _passed_over(name: str) -> Iterator[None]:
    """A tracker's failure is written down and passed over."""
    try:
        yield
    except Exception as error:  # any library, any failure: none may reach the run
        print(f"{name}: {type(error).__name__}: {error}", file=sys.stderr, flush=True)


def _time(event: Mapping[str, Any]) -> float:
    return float(event["time"]) if _is_number(event.get("time")) else time.time()


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


_PROJECT = "holdfast"


class Writer(Protocol):
    """A tracker that takes figures."""

    def __init__(self, run: Path, settings: Mapping[str, Any]):
        """Open it for a run."""

    def write(self, step: int, at: float, values: Mapping[str, float]) -> None:
        """Take figures of a step, made at a time in seconds since 1970."""

    def close(self, state: str, final: Mapping[str, float]) -> None:
        """Take how the run ended and its last figures."""


class TensorBoard:
    """Event files in RUN/tensorboard, written with the tensorboard package alone: no torch, no TensorFlow."""

    def __init__(self, run: Path, settings: Mapping[str, Any]):
        proto = "tensorboard.compat.proto"
        self._event = import_module(f"{proto}.event_pb2").Event
        self._summary = import_module(f"{proto}.summary_pb2").Summary
        writer = import_module("tensorboard.summary.writer.event_file_writer").EventFileWriter
        self._file = writer(str(run / "tensorboard"))

    def write(self, step: int, at: float, values: Mapping[str, float]) -> None:
        """Add scalars."""
        found = [self._summary.Value(tag=name, simple_value=value) for name, value in values.items()]
        self._file.add_event(self._event(wall_time=at, step=step, summary=self._summary(value=found)))

    def close(self, state: str, final: Mapping[str, float]) -> None:
        """Write what is left."""
        self._file.flush()
        self._file.close()


class MlFlow:
    """A run of the experiment "holdfast", where MLFLOW_TRACKING_URI says, or in MLflow's usual place."""

    def __init__(self, run: Path, settings: Mapping[str, Any]):
        self._entities = import_module("mlflow.entities")
        self._client = import_module("mlflow").MlflowClient()
        experiment = self._client.get_experiment_by_name(_PROJECT)
        number = experiment.experiment_id if experiment else self._client.create_experiment(_PROJECT)
        self._run = self._client.create_run(number, run_name=run.name, tags={"holdfast.run": str(run)}).info.run_id
        for name, value in settings.items():
            self._client.log_param(self._run, name, value)

    def write(self, step: int, at: float, values: Mapping[str, float]) -> None:
        """Log metrics."""
        metric = self._entities.Metric
        found = [metric(_plain(name), value, int(at * 1000), step) for name, value in values.items()]
        self._client.log_batch(self._run, metrics=found)

    def close(self, state: str, final: Mapping[str, float]) -> None:
        """Log the last figures and how it ended."""
        for name, value in final.items():
            self._client.log_metric(self._run, _plain(name), value)
        status = {"finished": "FINISHED", "failed": "FAILED"}.get(state, "KILLED")
        self._client.set_terminated(self._run, status)


class WandB:
    """A run of the project "holdfast"; WANDB_MODE=offline keeps it on this machine."""

    def __init__(self, run: Path, settings: Mapping[str, Any]):
        self._run = import_module("wandb").init(project=_PROJECT, name=run.name, dir=str(run), config=dict(settings))

    def write(self, step: int, at: float, values: Mapping[str, float]) -> None:
        """Log metrics."""
        self._run.log(dict(values), step=step)

    def close(self, state: str, final: Mapping[str, float]) -> None:
        """Add the last figures to the summary."""
        self._run.summary.update(dict(final))
        self._run.finish(exit_code=0 if state == "finished" else 1)


class Trackio:
    """A run of the project "holdfast", kept on this machine."""

    def __init__(self, run: Path, settings: Mapping[str, Any]):
        self._library: Any = import_module("trackio")
        self._library.init(project=_PROJECT, name=run.name, config=dict(settings))

    def write(self, step: int, at: float, values: Mapping[str, float]) -> None:
        """Log metrics."""
        self._library.log(dict(values), step=step)

    def close(self, state: str, final: Mapping[str, float]) -> None:
        """Log the last figures."""
        if final:
            self._library.log(dict(final))
        self._library.finish()


WRITERS: Mapping[str, type[Writer]] = {
    "tensorboard": TensorBoard,
    "mlflow": MlFlow,
    "wandb": WandB,
    "trackio": Trackio,
}


def _plain(name: str) -> str:
    """A name as MLflow allows it: recall@10 is recall_at_10."""
    return name.replace("@", "_at_")


if __name__ == "__main__":
    raise SystemExit(main(Path(sys.argv[1]), sys.argv[2].split(",")))
