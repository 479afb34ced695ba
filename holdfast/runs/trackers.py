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
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from holdfast.core.errors import RequestError
from holdfast.core.runfolder import RESULT
from holdfast.core.text import closest
from holdfast.runs.story import Story, read_story
from holdfast.runs.tracker_writers import WRITERS, Writer

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
def following(run: Path, names: Sequence[str]) -> Iterator[None]:
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


def _opened(run: Path, names: Sequence[str], story: Story) -> Iterator[Writer]:
    settings = {key: value for key, value in story.settings.items() if not isinstance(value, dict)}
    for name in names:
        with _passed_over(name):
            yield WRITERS[name](run, settings)


def _told(writer: Writer, step: int, at: float, values: Mapping[str, float]) -> bool:
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


if __name__ == "__main__":
    raise SystemExit(main(Path(sys.argv[1]), sys.argv[2].split(",")))
