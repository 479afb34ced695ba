"""Hands a run's numbers to experiment trackers: TensorBoard, MLflow, Weights & Biases, Trackio.

A separate process reads the events that the run writes and hands them on. A tracker that is slow, asks for a login or
breaks can therefore neither delay nor end a training run; its output is in RUN/trackers.log. A step that was repeated
after a crash is handed on once.

    python -m holdfast.runs.trackers RUN tensorboard,mlflow      until RUN has a result, or its parent is gone
"""

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

from holdfast.core.artifacts import read_artifact
from holdfast.core.errors import RequestError
from holdfast.core.event_log import EventTail
from holdfast.core.events import Evaluated, Event, Logged, StepDone
from holdfast.core.records import Result, read_record
from holdfast.core.runfolder import EVENTS, RESULT, SETTINGS, attempt_folders
from holdfast.core.scores import read_metrics
from holdfast.core.text import closest
from holdfast.runs.state import new_events

LOG = "trackers.log"
_LOOK_EVERY_SECONDS = 2.0
_REST = 20  # times as long as reading took: a long run has many events, and the cores are for training
_LAST_SECONDS = 20.0  # for what came at the very end
_LOGGED = ("loss", "learning_rate", "grad_norm")  # of what a script's trainer logs


def require_trackers(names: Sequence[str]) -> None:
    """Refuse trackers that are unknown or not installed."""
    for name in names:
        if name not in WRITERS:
            guess = closest(name, WRITERS)
            hint = (f"did you mean {guess}?",) if guess else ()
            raise RequestError(f"unknown tracker {name!r}", found=f"known: {', '.join(WRITERS)}", try_next=hint)
    missing = [name for name in names if find_spec(name) is None]
    if missing:
        raise RequestError(
            f"--report-to names {missing[0]}, which is not installed",
            found=f"no {missing[0]} in {sys.prefix}",
            try_next=(f"pip install {' '.join(missing)}",),
        )


@contextmanager
def tracking(run: Path, names: Sequence[str]) -> Iterator[None]:
    """Meanwhile the run's numbers go to these trackers; the rest is handed on at the end."""
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
            follower.wait(_LAST_SECONDS)
        except subprocess.TimeoutExpired:
            follower.kill()
            follower.wait()


class NewNumbers:
    """The numbers of a run that were not handed on yet."""

    def __init__(self, run: Path):
        self._run, self._tails = run, dict[str, EventTail]()
        self._step, self._evaluations = 0, set[int]()

    def read(self) -> list[tuple[int, float, dict[str, float]]]:
        """Step, time and numbers, in the order of the steps: W&B drops what comes for an earlier step."""
        found: list[tuple[int, float, dict[str, float]]] = []
        for folder in attempt_folders(self._run):
            for event in new_events(self._tails.setdefault(folder.name, EventTail(folder / EVENTS))):
                found += self._of_event(event)
        return sorted(found, key=lambda one: one[0])

    def _of_event(self, event: Event) -> Iterator[tuple[int, float, dict[str, float]]]:
        match event:
            case StepDone():
                numbers = {"loss": event.loss, "learning_rate": event.lr, "grad_norm": event.norm}
                yield from self._of_step(event.step + 1, event.time, numbers)
            case Logged():
                yield from self._of_step(event.step, event.time, {name: event.values.get(name) for name in _LOGGED})
                scores = {key[5:]: value for key, value in event.values.items() if key.startswith("eval_")}
                yield from self._of_evaluation(event.step, event.time, scores)
            case Evaluated():
                yield from self._of_evaluation(event.step, event.time, event.metrics)

    def _of_step(
        self, step: int, at: float, numbers: Mapping[str, object]
    ) -> Iterator[tuple[int, float, dict[str, float]]]:
        known = {f"train/{name}": value for name, value in _numbers(numbers).items()}
        if known and step > self._step:
            self._step = step
            yield step, at, known

    def _of_evaluation(
        self, step: int, at: float, metrics: Mapping[str, object]
    ) -> Iterator[tuple[int, float, dict[str, float]]]:
        known = {f"eval/{name}": value for name, value in _numbers(metrics).items()}
        if known and step not in self._evaluations:
            self._evaluations.add(step)
            yield step, at, known


def follow(run: Path, names: Sequence[str], is_over: Callable[[], bool], every_seconds: float) -> None:
    """Hand on numbers until the run is over, and then the rest."""
    while not (settings := _settings(run)) and not is_over():
        time.sleep(every_seconds)
    writers, numbers = list(_opened(run, names, settings)), NewNumbers(run)
    while writers:
        is_last, begun = is_over(), time.monotonic()
        for step, at, values in numbers.read():
            writers = [writer for writer in writers if _write(writer, step, at, values)]
        if is_last:
            break
        time.sleep(max(every_seconds, _REST * (time.monotonic() - begun)))
    result = read_record(run, Result)
    state = result.state if result else "stopped"
    for writer in writers:
        with _isolated(type(writer).__name__):
            writer.close(state, _final(run))


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


def _settings(run: Path) -> dict[str, Any]:
    """The settings of the newest attempt that has any; for a command its name alone is known."""
    found = (read_artifact(attempt / SETTINGS) for attempt in reversed(attempt_folders(run)))
    return next((one for one in found if one), {})


def _opened(run: Path, names: Sequence[str], settings: Mapping[str, Any]) -> Iterator["Writer"]:
    plain = {key: value for key, value in settings.items() if not isinstance(value, dict)}
    for name in names:
        with _isolated(name):
            yield WRITERS[name](run, plain)


def _write(writer: "Writer", step: int, at: float, values: Mapping[str, float]) -> bool:
    """Hand on some numbers; False for a writer that failed, which gets no more."""
    is_written = False
    with _isolated(type(writer).__name__):
        writer.write(step, at, values)
        is_written = True
    return is_written


def _final(run: Path) -> dict[str, float]:
    """The metrics of the finished model."""
    scores = read_metrics(run).scores
    return {f"{split}/{name}": value for split, found in scores.items() for name, value in found.items()}


@contextmanager
def _isolated(name: str) -> Iterator[None]:
    """A failure of a tracker is logged and does not reach the run."""
    try:
        yield
    except Exception as error:  # any library, any failure
        print(f"{name}: {type(error).__name__}: {error}", file=sys.stderr, flush=True)


def _numbers(values: Mapping[str, object]) -> dict[str, float]:
    return {
        name: float(value)
        for name, value in values.items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    }


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
