"""What is known of a run and of its attempts: the values that `runs/state.py` folds, and every view shows."""

import math
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, TypeGuard, cast

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from holdfast.core import events as ev
from holdfast.core.artifacts import read_artifact, to_plain
from holdfast.core.evidence import Cause, Decision, Diagnosis
from holdfast.core.facts import DatasetFacts, MachineFacts
from holdfast.core.observations import Activity
from holdfast.core.plan import Choice, Reason
from holdfast.core.prepared import Manifest
from holdfast.core.records import (
    CommandRequest,
    Forecast,
    Interruption,
    Mistakes,
    Proof,
    Result,
    RunPlan,
    read_record,
    to_record,
)
from holdfast.core.runfolder import (
    MANIFEST,
    OUTPUT,
    model_folder,
)
from holdfast.core.scores import ModelMetrics, Split, SplitMetrics
from holdfast.core.settings import EngineSettings, TrainRequest
from holdfast.logs.log_lines import clean_lines
from holdfast.pipeline.train_plan import proven_choices, proven_settings
from holdfast.runs.nodes import NodeStatus

State = Literal["preparing", "proving", "waiting", "training", "finished", "failed", "stopped"]
AttemptEnd = Literal["running", "finished", "died", "hung", "stopped", "interrupted"]
ENDED = frozenset({"finished", "failed", "stopped"})

_MOST_POINTS = 4000  # of one curve; a chart draws 500
_RECENT_STEPS = 50  # from which the speed of now is measured
_SMOOTH = 0.9
_TAIL_BYTES = 16_384


class Curves:
    """Numbers over the steps of all attempts. Grows in place; long ones are thinned evenly.

    A step that a later attempt did again counts once.
    """

    def __init__(self, known: "CurveSummary | None" = None) -> None:
        self.steps: dict[int, ev.StepDone | ev.Logged] = {}  # by how many steps were done
        self.evaluations: dict[int, dict[str, float]] = {}
        self.smoothed: deque[float] = deque(known.losses if known else (), maxlen=500)  # recent losses
        self.evaluation_seconds = known.evaluation_seconds if known else 0.0
        self._every, self._newest = 1, 0
        self._recent: deque[tuple[int, float]] = deque(maxlen=_RECENT_STEPS)
        self._step_at = 0.0
        self._speed = known.seconds_per_step if known else None
        self._has_steps = False

    @property
    def seconds_per_step(self) -> float | None:
        """The speed of now; after a pause, that of before it until two more steps are done."""
        if len(self._recent) >= 2:
            (first, began), (last, ended) = self._recent[0], self._recent[-1]
            if last > first and ended > began:
                self._speed = (ended - began) / (last - first)
        return self._speed

    def losses(self) -> list[tuple[int, float]]:
        """Loss by step."""
        return [(step, loss) for step, event in sorted(self.steps.items()) if (loss := loss_of(event)) is not None]

    def add_step(self, event: ev.StepDone | ev.Logged) -> None:
        """Take one step, or what a script's trainer logged of it."""
        done = event.step + isinstance(event, ev.StepDone)  # the engine counts from 0
        loss = loss_of(event)
        if loss is None and isinstance(event, ev.Logged):
            return
        if self._newest % self._every:
            self.steps.pop(self._newest, None)  # it was kept only as the newest
        self.steps[done], self._newest = event, done
        if loss is not None:
            before = self.smoothed[-1] if self.smoothed else loss
            self.smoothed.append(loss if isinstance(event, ev.Logged) else _SMOOTH * before + (1 - _SMOOTH) * loss)
        if isinstance(event, ev.StepDone):
            self._has_steps, self._step_at = True, event.time
            self._recent.append((done, event.time))
        if len(self.steps) > _MOST_POINTS:
            self._every *= 2
            self.steps = {step: one for step, one in self.steps.items() if step % self._every == 0 or step == done}

    def add_evaluation(self, step: int, metrics: Mapping[str, object], at: float) -> None:
        """Take the metrics of one evaluation."""
        numbers = {name: float(value) for name, value in metrics.items() if _is_number(value)}
        if numbers:
            self.evaluations[step] = self.evaluations.get(step, {}) | numbers
        if self._step_at:
            self.evaluation_seconds = max(0.0, at - self._step_at)
        self.pause()

    def see_step(self, step: int, at: float) -> None:
        """Take a step that was only seen from outside, as of a script that reports none."""
        if step and not self._has_steps and (not self._recent or step > self._recent[-1][0]):
            self._recent.append((step, at))

    def pause(self) -> None:
        """The time until the next step is not a step's."""
        self._recent.clear()


class AttemptState(Struct, frozen=True, kw_only=True):
    """Where one attempt is, or how it went."""

    number: int
    folder: Path
    outcome: AttemptEnd = "running"
    fallback: str = ""  # title of the fallback it tries; empty for the plan as requested
    reason: Reason | None = None
    changes: Mapping[str, Any] = {}  # everything that differs from the plan as requested
    phase: str = ""
    step: int = 0
    steps: int = 0
    first_step: int | None = None  # None until it trains
    epoch_steps: int = 0
    processes: int = 1  # that share each step
    resumed: ev.Resumed | ev.StartedOver | None = None
    saved_step: int | None = None
    is_disk_full: bool = False  # nothing could be saved since `saved_step`
    checkpoint_problems: tuple[ev.Event, ...] = ()
    weights: ev.WeightsChecked | None = None  # the newest check
    quiet: ev.Quiet | None = None  # no progress for a while
    activity: Activity | None = None  # what its processes do
    resident_bytes: int | None = None
    peak_bytes: int | None = None
    memory: tuple[tuple[float, int], ...] = ()  # time and resident bytes
    started: float | None = None
    ended: float | None = None
    noticed_after_seconds: float | None = None
    cause: Cause | Interruption | None = None
    slug: str | None = None
    diagnosis: Diagnosis | None = None
    decision: Decision | None = None  # what followed

    @property
    def is_running(self) -> bool:
        """Whether its processes run."""
        return self.outcome == "running"

    @property
    def is_failed(self) -> bool:
        """Whether it ended by a fault."""
        return self.outcome in ("died", "hung")

    @property
    def seconds(self) -> float | None:
        """How long it ran."""
        return self.ended - self.started if self.started is not None and self.ended is not None else None

    def tail(self, lines: int = 30) -> str:
        """The last lines of its output."""
        try:
            with (self.folder / OUTPUT).open("rb") as file:
                file.seek(0, 2)
                file.seek(max(0, file.tell() - _TAIL_BYTES))
                text = file.read().decode(errors="replace")
        except OSError:
            return ""
        # A progress bar draws over itself; only what stayed on screen is worth keeping.
        kept = [line for _, line in clean_lines(enumerate(text.replace("\r\n", "\n").split("\n"), start=1))]
        return "\n".join(kept[-lines:]).strip("\n")


class Records(Struct, frozen=True, kw_only=True):
    """What the run's folder holds besides events: one value for each file, none where it is missing."""

    request: TrainRequest | CommandRequest | None = None
    machine: MachineFacts | None = None
    dataset: DatasetFacts | None = None
    plan: RunPlan | None = None
    proof: Proof | None = None
    forecast: Forecast | None = None
    metrics: ModelMetrics = ModelMetrics()
    mistakes: Mistakes | None = None
    result: Result | None = None

    @property
    def choices(self) -> Mapping[str, Choice[Any]]:
        """Every planned setting with its reason, as the proof left it; empty without a plan."""
        return proven_choices(self.plan, self.proof) if self.plan else {}

    @property
    def settings(self) -> EngineSettings | None:
        """The planned settings, as the proof left them; None without a plan."""
        return proven_settings(self.plan, self.proof) if self.plan else None


class RunState(Struct, frozen=True, kw_only=True):
    """Where a run is, or how it ended. The first block is folded from events, the second read from files."""

    folder: Path
    attempts: tuple[AttemptState, ...] = ()
    stage: str = ""  # of the pipeline, before the first attempt
    working: ev.Working | None = None  # how far that stage is
    waiting: ev.MachinesAwaited | ev.LeaderAwaited | None = None
    history: tuple[ev.Event, ...] = ()  # what happened, without what comes by the thousand
    is_stopping: bool = False
    curves: Curves = field(default_factory=Curves)

    records: Records = Records()
    is_supervised: bool = True
    is_orphaned: bool = False  # its processes run on without a supervisor
    nodes: tuple[NodeStatus, ...] = ()  # where several machines take part

    @property
    def attempt(self) -> AttemptState | None:
        """The newest attempt."""
        return self.attempts[-1] if self.attempts else None

    @property
    def state(self) -> State:
        """The current phase as one word."""
        if not self.is_supervised and not self.is_orphaned:
            return self.records.result.state if self.records.result else "stopped"
        if self.waiting:
            return "waiting"
        if self.attempts:
            return "training"
        return "proving" if self.stage == "prove" else "preparing"

    @property
    def has_ended(self) -> bool:
        """Whether nothing of it runs any more."""
        return self.state in ENDED

    @property
    def phase(self) -> str:
        """What the training process does: of an attempt that runs, or was the last to be stopped."""
        return self.attempt.phase if self.attempt and self.state in ("training", "stopped") else ""

    @property
    def step(self) -> int:
        """The last step done. While an attempt loads, it is where the one before was."""
        return next((attempt.step for attempt in reversed(self.attempts) if attempt.step), 0)

    @property
    def steps(self) -> int:
        """How many steps the run has; 0 where that is not known."""
        return next((attempt.steps for attempt in reversed(self.attempts) if attempt.steps), 0)

    @property
    def saved_step(self) -> int | None:
        """The newest checkpoint."""
        return next((one.saved_step for one in reversed(self.attempts) if one.saved_step is not None), None)

    @property
    def loss(self) -> float | None:
        """The recent loss, smoothed over steps."""
        return self.curves.smoothed[-1] if self.curves.smoothed else None

    @property
    def scores(self) -> Mapping[str, Mapping[str, float]]:
        """Of the finished model, by split; before that those of the newest evaluation."""
        newest = max(self.curves.evaluations, default=None)
        during = {"validation": self.curves.evaluations[newest]} if newest is not None else {}
        return self.records.metrics.scores or during

    @property
    def processes(self) -> int:
        """How many processes share each step."""
        return self.attempt.processes if self.attempt else (self.records.plan.processes if self.records.plan else 1)

    @property
    def is_training(self) -> bool:
        """Whether an attempt runs now."""
        return self.state == "training" and self.attempt is not None and self.attempt.is_running

    @property
    def steps_per_second(self) -> float | None:
        """The speed of now."""
        per_step = self.curves.seconds_per_step
        return 1 / per_step if per_step and self.is_training else None

    @property
    def seconds_left(self) -> float | None:
        """Steps and evaluations still to come, at the speed of now."""
        per_step, attempt = self.curves.seconds_per_step, self.attempt
        if not per_step or not attempt or not self.is_training or self.step >= self.steps:
            return None  # what is left then is a last evaluation, and writing the model
        left, evaluation = self.steps - self.step, self.curves.evaluation_seconds
        evaluations = left // attempt.epoch_steps if attempt.epoch_steps else 0
        return left * per_step + (evaluations + 2) * evaluation  # at the end validation and test

    @property
    def seconds(self) -> float:
        """How long all attempts took together."""
        result = self.records.result
        return result.seconds if result else sum(one.seconds or 0.0 for one in self.attempts)

    @property
    def is_command(self) -> bool:
        """Whether someone else's command is supervised, not our own training."""
        return isinstance(self.records.request, CommandRequest)

    @property
    def settings(self) -> EngineSettings | None:
        """The settings of the newest attempt that has any, or those of the plan; None before that."""
        found = (read_record(attempt.folder, EngineSettings) for attempt in reversed(self.attempts))
        return next(filter(None, found), self.records.settings)

    @property
    def task(self) -> str:
        """What is trained; empty for a command."""
        known = self.settings or self.records.dataset or self.records.result
        return known.task if known else ""

    @property
    def manifest(self) -> Manifest | None:
        """The contents of the folder of prepared data; None if it is missing."""
        settings = self.settings
        return to_record(read_artifact(Path(settings.prepared) / MANIFEST), Manifest) if settings else None

    @property
    def has_model(self) -> bool:
        """Whether the folder holds a finished model."""
        return any(model_folder(self.folder).rglob("*.safetensors"))


class CurveSummary(Struct, frozen=True, kw_only=True):
    """What a view without charts needs of the curves."""

    losses: tuple[float, ...] = ()  # recent ones, smoothed
    seconds_per_step: float | None = None
    evaluation_seconds: float = 0.0


class RunSnapshot(Struct, frozen=True, kw_only=True):
    """A run as the API returns it: another machine makes the same `RunState` of it, without the paths of this one."""

    attempts: tuple[AttemptState, ...] = ()
    stage: str = ""
    working: ev.Working | None = None
    waiting: ev.MachinesAwaited | ev.LeaderAwaited | None = None
    is_stopping: bool = False
    is_supervised: bool = True
    is_orphaned: bool = False
    nodes: tuple[NodeStatus, ...] = ()
    scores: Mapping[Split, Mapping[str, float]] = {}
    curves: CurveSummary = CurveSummary()
    result: Result | None = None


_SHARED = ("stage", "working", "waiting", "is_stopping", "is_supervised", "is_orphaned", "nodes")
_SHARED_LOSSES = 60


def snapshot_fields(state: RunState) -> dict[str, Any]:
    """The snapshot of a run as JSON."""
    result = state.records.result
    snapshot = RunSnapshot(
        **{name: getattr(state, name) for name in _SHARED},
        attempts=tuple(replace(one, folder=Path(), memory=(), checkpoint_problems=()) for one in state.attempts),
        scores=cast(Mapping[Split, Mapping[str, float]], state.scores),
        curves=CurveSummary(
            losses=tuple(loss for loss in state.curves.smoothed if math.isfinite(loss))[-_SHARED_LOSSES:],
            seconds_per_step=state.curves.seconds_per_step,
            evaluation_seconds=state.curves.evaluation_seconds,
        ),
        result=replace(result, model=None, next=()) if result else None,
    )
    return cast(dict[str, Any], to_plain(msgspec.to_builtins(snapshot, enc_hook=str)))


def from_snapshot(plain: object) -> RunState | None:
    """The state that a snapshot describes; None without one, or where a newer server sends what is not known here."""
    if not plain:
        return None
    try:
        shared = msgspec.convert(plain, RunSnapshot, dec_hook=lambda kind, value: kind(value))
    except msgspec.ValidationError:
        return None
    return RunState(
        **{name: getattr(shared, name) for name in _SHARED},
        folder=Path(),
        attempts=shared.attempts,
        curves=Curves(shared.curves),
        records=Records(
            metrics=ModelMetrics(splits={name: SplitMetrics(scores=found) for name, found in shared.scores.items()}),
            result=shared.result,
        ),
    )


def loss_of(event: ev.StepDone | ev.Logged) -> float | None:
    """The loss of a step, where it is known."""
    loss = event.loss if isinstance(event, ev.StepDone) else event.values.get("loss")
    return float(loss) if _is_number(loss) else None


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and value == value  # NaN differs from itself
