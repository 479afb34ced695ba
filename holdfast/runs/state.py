"""The state of a run: folded from its events and its records, and the only thing that any view of a run shows.

    state = read_state(run)                    # now, from the folder alone; refuses a folder that holds no run
    for state in watch(run): ...               # twice a second, until the run has ended
    reader = RunReader(run); reader.read()     # again and again, at the cost of what is new: for pages
    state = apply(state, event)                # one event as it happens: for the process that supervises the run

The command line, the pages, the API and the report take a `RunState` and words for it from `runs/wording.py`; nothing
else reads a run folder to say where a run stands. A page keeps one `RunReader` for each run that is looked at, calls
`read()` for each view (it may be called from several threads), and passes what its own database knows better, such as
whether somebody works on the run, as `is_supervised`. A file that is missing, half or strange is as if it were absent.
"""

import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from msgspec import Struct, field
from msgspec.structs import replace

from holdfast.core import events as ev
from holdfast.core.artifacts import read_artifact
from holdfast.core.errors import RequestError
from holdfast.core.event_log import EventTail, find_last
from holdfast.core.evidence import Decision, Diagnosis
from holdfast.core.plan import Reason
from holdfast.core.records import AttemptStart, Outcome, read_record
from holdfast.core.runfolder import (
    DATASET,
    DOCTOR,
    EVENTS,
    MACHINE,
    MANIFEST,
    METRICS,
    MISJUDGED,
    OUTPUT,
    REQUEST,
    RESULT,
    RUNG,
    SAMPLES,
    SETTINGS,
    attempt_folders,
    model_folder,
)
from holdfast.logs.log_lines import clean_lines
from holdfast.runs.earlier_attempts import is_left_running
from holdfast.runs.nodes import MachineWatch, NodeStatus
from holdfast.runs.plan_view import plan_view
from holdfast.runs.run_path import require_run
from holdfast.supervisor.ends import read_ranks
from holdfast.supervisor.outcome import newest_beat

State = Literal["preparing", "proving", "waiting", "training", "finished", "failed", "stopped"]
AttemptEnd = Literal["running", "finished", "died", "hung", "stopped", "interrupted"]
ENDED = frozenset({"finished", "failed", "stopped"})

_MOST_POINTS = 4000  # of one curve; a chart draws 500
_RECENT_STEPS = 50  # from which the speed of now is measured
_SMOOTH = 0.9
_RECENT_BYTES = 1 << 19  # of the newest attempt's events, where only the present is asked for
_TAIL_BYTES = 16_384
_WATCH_SECONDS = 0.5


class Curves:
    """Numbers over the steps of all attempts. Grows in place; long ones are thinned evenly.

    A step that a later attempt did again counts once.
    """

    def __init__(self) -> None:
        self.steps: dict[int, ev.StepDone | ev.Logged] = {}  # by how many steps were done
        self.evaluations: dict[int, dict[str, float]] = {}
        self.smoothed: deque[float] = deque(maxlen=500)  # recent losses
        self.evaluation_seconds = 0.0
        self._every, self._newest = 1, 0
        self._recent: deque[tuple[int, float]] = deque(maxlen=_RECENT_STEPS)
        self._step_at = 0.0
        self._speed: float | None = None
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
    remedy: str = ""  # title of the fallback it tries; empty for the plan as requested
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
    activity: Any = None  # what its processes do
    resident_bytes: int | None = None
    peak_bytes: int | None = None
    memory: tuple[tuple[float, int], ...] = ()  # time and resident bytes
    started: float | None = None
    ended: float | None = None
    noticed_after_seconds: float | None = None
    cause: Any = None
    slug: str | None = None
    diagnosis: Diagnosis | None = None
    decision: Decision | None = None  # what followed
    exit_code: int | None = None

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
        """The last lines of what it printed."""
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
    """What the run's folder holds besides events: one value for each file, empty where it is missing."""

    request: Mapping[str, Any] = {}
    machine: Mapping[str, Any] = {}
    dataset: Mapping[str, Any] = {}
    plan: Mapping[str, Any] = {}
    doctor: Mapping[str, Any] = {}
    metrics: Mapping[str, Any] = {}
    misjudged: Mapping[str, Any] = {}
    result: Mapping[str, Any] = {}


class RunState(Struct, frozen=True, kw_only=True):
    """Where a run is, or how it ended. The first block is folded from events, the second read from files."""

    folder: Path
    attempts: tuple[AttemptState, ...] = ()
    stage: str = ""  # of the pipeline, before the first attempt
    stage_since: float | None = None
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
        """Where it is, in a word."""
        if not self.is_supervised and not self.is_orphaned:
            known = self.records.result.get("state")
            return known if known in ENDED else "failed" if self.records.result else "stopped"
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
    def metrics(self) -> Mapping[str, Any]:
        """Of the finished model by split; before that those of the newest evaluation."""
        newest = max(self.curves.evaluations, default=None)
        return self.records.metrics or (self.curves.evaluations[newest] if newest is not None else {})

    @property
    def processes(self) -> int:
        """How many processes share each step."""
        return self.attempt.processes if self.attempt else int(self.records.request.get("processes") or 1)

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
        known = self.records.result.get("seconds")
        return float(known) if _is_number(known) else sum(one.seconds or 0.0 for one in self.attempts)

    @property
    def is_command(self) -> bool:
        """Whether someone else's command is supervised, not our own training."""
        return self.records.request.get("kind") == "command" or bool(self.records.request.get("command"))

    @property
    def settings(self) -> Mapping[str, Any]:
        """The settings of the newest attempt that has any, or those of the plan."""
        found = (read_artifact(attempt.folder / SETTINGS) for attempt in reversed(self.attempts))
        return next((one for one in found if one.get("task")), self.records.plan.get("settings") or {})

    @property
    def task(self) -> str:
        """What is trained; empty for a command."""
        known = (self.settings, self.records.dataset, self.records.result)
        return next((str(one["task"]) for one in known if one.get("task")), "")

    @property
    def manifest(self) -> Mapping[str, Any]:
        """What was prepared of the data."""
        prepared = self.settings.get("prepared")
        return read_artifact(Path(prepared) / MANIFEST) if prepared else {}

    @property
    def has_model(self) -> bool:
        """Whether the folder holds a finished model."""
        return any(model_folder(self.folder).rglob("*.safetensors"))


def fold(events: Iterable[ev.Event], records: Records = Records(), folder: Path = Path()) -> RunState:  # noqa: B008
    """The state of a run: what its supervisor and its training process told, in order, and what its files hold."""
    state = RunState(folder=folder, records=records)
    for event in events:
        state = apply(state, event)
    return state


def apply(state: RunState, event: ev.Event, number: int = 0) -> RunState:
    """The state after one more event. An event of a training process belongs to attempt `number`, or to the newest."""
    match event:
        case ev.Working():
            return replace(state, working=event)
        case ev.StageStarted():
            state = replace(state, stage=event.stage, stage_since=event.time, working=None, waiting=None)
        case ev.MachinesAwaited() | ev.LeaderAwaited():
            state = replace(state, waiting=event)
        case ev.AttemptStarted():
            state = replace(_with_attempt(state, event), waiting=None, working=None, stage="")
        case ev.StopStarted():
            state = replace(state, is_stopping=True)
        case ev.RunFinished() | ev.RunFailed() | ev.RunStopped():
            state = replace(state, waiting=None, is_stopping=False)
    if type(event) in _TOLD:
        state = replace(state, history=(*state.history, event))
    at = next((at for at, one in enumerate(state.attempts) if one.number == number), len(state.attempts) - 1)
    if at < 0:
        return state
    attempt = _apply_to_attempt(state.attempts[at], event, state.curves)
    if attempt is state.attempts[at]:
        return state
    return replace(state, attempts=(*state.attempts[:at], attempt, *state.attempts[at + 1 :]))


def _with_attempt(state: RunState, event: ev.AttemptStarted) -> RunState:
    state.curves.pause()
    folder = Path(event.folder) if event.folder else state.folder / "attempts" / f"{event.number:02d}"
    attempt = AttemptState(
        number=event.number,
        folder=folder,
        remedy=event.remedy,
        reason=event.reason,
        changes=event.changes,
        started=event.time,
        phase="start",
    )
    before = tuple(one for one in state.attempts if one.number != event.number)
    return replace(state, attempts=tuple(sorted((*before, attempt), key=lambda one: one.number)))


def _apply_to_attempt(attempt: AttemptState, event: ev.Event, curves: Curves) -> AttemptState:
    match event:
        case ev.StepDone():
            curves.add_step(event)
            return replace(attempt, phase="step", step=max(attempt.step, event.step + 1), quiet=None)
        case ev.Logged():
            curves.add_step(event)
            scores = {name[5:]: value for name, value in event.values.items() if name.startswith("eval_")}
            if scores:
                curves.add_evaluation(event.step, scores, event.time)
            return replace(attempt, step=max(attempt.step, event.step))
        case ev.Evaluated():
            curves.add_evaluation(event.step, event.metrics, event.time)
            return attempt
        case ev.TrainingStarted():
            curves.pause()
            first = event.first_step
            return replace(attempt, first_step=first, step=first, steps=event.steps, epoch_steps=event.epoch_steps)
        case ev.Resumed():
            return replace(attempt, resumed=event, step=max(attempt.step, event.step))
        case ev.StartedOver():
            return replace(attempt, resumed=event)
        case ev.Progressed() | ev.TreeSampled():
            return _seen(attempt, event, curves)
        case ev.PhaseChanged():
            return replace(attempt, phase=event.phase, step=max(attempt.step, event.step), quiet=None)
        case ev.Quiet():
            return replace(attempt, quiet=event, activity=event.activity)
        case ev.CheckpointSaved():
            return replace(attempt, saved_step=event.step, is_disk_full=False)
        case ev.CheckpointFailed():
            problems = (*attempt.checkpoint_problems, event)
            is_full = attempt.is_disk_full or event.is_full
            return replace(attempt, checkpoint_problems=problems, is_disk_full=is_full)
        case ev.CheckpointSkipped() | ev.CheckpointRejected() | ev.BestCheckpointMissing():
            return replace(attempt, checkpoint_problems=(*attempt.checkpoint_problems, event))
        case ev.DiskFull():
            return replace(attempt, is_disk_full=True)
        case ev.WeightsChecked():
            return replace(attempt, weights=event)
        case ev.TrainingFinished():
            return replace(attempt, outcome="finished", ended=event.time, steps=event.steps)
        case ev.TrainingStopped():
            return replace(attempt, outcome="stopped", ended=event.time)
        case ev.AttemptEnded():
            return replace(
                attempt,
                outcome=event.outcome,
                slug=event.slug,
                cause=event.cause,
                step=max(attempt.step, event.step),
                noticed_after_seconds=event.noticed_after_seconds,
                ended=event.time,
                quiet=None,
            )
        case ev.RunFinished() | ev.RunStopped() if attempt.is_running:
            ending: AttemptEnd = "finished" if isinstance(event, ev.RunFinished) else "stopped"
            return replace(attempt, outcome=ending, ended=event.time, quiet=None)
    return attempt


def _seen(attempt: AttemptState, event: ev.Progressed | ev.TreeSampled, curves: Curves) -> AttemptState:
    """What the supervisor saw of it from outside."""
    curves.see_step(event.step, event.time)
    has_moved = event.step > attempt.step or event.phase != attempt.phase
    memory = attempt.memory
    if isinstance(event, ev.TreeSampled) and event.resident_bytes:
        memory = (*(memory if len(memory) < _MOST_POINTS else memory[::2]), (event.time, event.resident_bytes))
    return replace(
        attempt,
        phase=event.phase or attempt.phase,
        step=max(attempt.step, event.step),
        steps=event.steps or attempt.steps,
        resident_bytes=event.resident_bytes or attempt.resident_bytes,
        peak_bytes=max(attempt.peak_bytes or 0, event.resident_bytes) or None,
        activity=event.activity,
        quiet=None if has_moved else attempt.quiet,
        memory=memory,
    )


# What the training process itself writes, into the file of its attempt. Some of it is also passed on to the run's file.
OF_TRAINING = (
    *(ev.TrainingStarted, ev.EpochStarted, ev.StepDone, ev.Evaluated, ev.Sampled, ev.Logged, ev.ScriptTrained),
    *(ev.CheckpointStarted, ev.CheckpointSaved, ev.CheckpointFailed, ev.CheckpointSkipped, ev.CheckpointRejected),
    *(ev.CheckpointOverBudget, ev.BestCheckpointMissing, ev.Resumed, ev.StartedOver, ev.BadNumbersFound),
    *(ev.WeightsChecked, ev.TrainingStopped, ev.TrainingFinished, ev.PartUsed, ev.ChangeApplied, ev.ChangeRefused),
)

# What a person is told as history. The rest comes by the thousand, or is in the attempt.
_TOLD = frozenset(
    {
        *(ev.StageStarted, ev.Surveyed, ev.ModelFound, ev.MachineProbed, ev.FindingReported, ev.DataPrepared),
        *(ev.Planned, ev.ProofReported, ev.ForecastMade, ev.Noted, ev.ReportWritten, ev.ReportFailed),
        *(ev.AttemptStarted, ev.SettingsRemembered, ev.Quiet, ev.AttemptEnded, ev.Decided, ev.DiskFull),
        *(ev.ProcessesEnded, ev.ProcessesLeft, ev.StopStarted, ev.RunFinished, ev.RunStopped, ev.RunFailed),
        *(ev.MachinesAwaited, ev.LeaderAwaited, ev.LeaderLost, ev.StorageTrouble, ev.UnknownEvent),
    }
)


def read_state(run: Path, *, is_supervised: bool | None = None) -> RunState:
    """Where a run is now. Of long attempts only the recent steps are read: for curves take `RunReader`."""
    require_run(run)
    return _read_once(RunReader(run, recent_bytes=_RECENT_BYTES), is_supervised)


def read_whole_state(run: Path, *, is_supervised: bool | None = None) -> RunState:
    """Where a run is now, with every step it did."""
    require_run(run)
    return _read_once(RunReader(run), is_supervised)


def _read_once(reader: "RunReader", is_supervised: bool | None) -> RunState:
    """The state, once it is known whether other machines are alive: that may take a few seconds."""
    while True:
        state = reader.read(is_supervised=is_supervised)
        if reader.is_sure or is_supervised is not None:
            return state
        time.sleep(_WATCH_SECONDS)


def watch(run: Path) -> Iterator[RunState]:
    """The state of a run, twice a second, until it has ended."""
    require_run(run)
    reader = RunReader(run, recent_bytes=_RECENT_BYTES)
    while True:
        state = reader.read()
        yield state
        if state.has_ended and not state.is_supervised:
            return
        time.sleep(_WATCH_SECONDS)


class RunReader:
    """Reads one run folder again and again: what was read before is not read again."""

    def __init__(self, run: Path, *, recent_bytes: int | None = None):
        self._run, self._recent_bytes = run, recent_bytes
        self._events = EventTail(run / EVENTS)
        self._state = RunState(folder=run)
        self._tails: dict[int, tuple[EventTail, EventTail]] = {}
        self._ended: dict[int, AttemptState] = {}  # attempts whose files change no more
        self._machines = MachineWatch(run)
        self.is_sure = True  # False when the last state rests on what only a later look can know
        self._lock = threading.Lock()

    def read(self, *, is_supervised: bool | None = None) -> RunState:
        """The state now; `is_supervised` where the caller knows that better than the folder."""
        with self._lock:
            state = self._state
            for event in new_events(self._events):
                state = state if isinstance(event, OF_TRAINING) else apply(state, event)
            for folder in _attempt_folders(self._run):
                state = self._read_attempt(state, folder)
            self._state = state
            return self._with_files(state, is_supervised)

    def _read_attempt(self, state: RunState, folder: Path) -> RunState:
        """Add what is new in the files of one attempt."""
        number = int(folder.name)
        if not any(one.number == number for one in state.attempts):
            state = _with_attempt(state, _start_of(folder, number))
        if number not in self._tails:
            self._tails[number] = (EventTail(folder / EVENTS), EventTail(folder / SAMPLES))
            if self._recent_bytes:
                state = self._skip_old(state, folder, number)
        for tail in self._tails[number]:
            for event in new_events(tail):
                state = apply(state, event, number)
        return state

    def _skip_old(self, state: RunState, folder: Path, number: int) -> RunState:
        """Pass over the beginning of a long file, but for the events that say where it is."""
        assert self._recent_bytes is not None
        path = folder / EVENTS
        try:
            size = path.stat().st_size
        except OSError:
            return state
        if size <= self._recent_bytes:
            return state
        for kind in (ev.TrainingStarted, ev.Resumed, ev.Evaluated, ev.CheckpointSaved, ev.WeightsChecked):
            if event := find_last(path, kind):
                state = apply(state, event, number)
        state.curves.pause()
        tail = EventTail(path, at=size - self._recent_bytes)  # the first line is cut, and is not understood
        self._tails[number] = (tail, self._tails[number][1])
        return state

    def _with_files(self, state: RunState, is_supervised: bool | None) -> RunState:
        """The same with what the files of the run say now."""
        run = self._run
        is_led = self._machines.leader() is not None if is_supervised is None else is_supervised
        is_sure, nodes = self._machines.is_sure, self._machines.nodes()
        self.is_sure = is_sure and self._machines.is_sure
        is_orphaned = not is_led and is_left_running(run)
        attempts = [self._attempt_with_files(one, is_newest=one is state.attempts[-1]) for one in state.attempts]
        if attempts and attempts[-1].is_running and not (is_led or is_orphaned):
            attempts[-1] = replace(attempts[-1], outcome="interrupted")
        return replace(
            state,
            attempts=tuple(attempts),
            records=_read_records(run),
            is_supervised=is_led,
            is_orphaned=is_orphaned,
            waiting=state.waiting if is_led else None,
            nodes=nodes,
        )

    def _attempt_with_files(self, attempt: AttemptState, *, is_newest: bool) -> AttemptState:
        if attempt.number in self._ended and not is_newest:
            return self._ended[attempt.number]
        outcome = read_record(attempt.folder, Outcome)
        phase, step, steps = newest_beat(attempt.folder)
        attempt = replace(
            attempt,
            phase=phase or attempt.phase,
            step=max(step, attempt.step),
            steps=steps or attempt.steps,
            processes=_processes_of(attempt.folder),
            diagnosis=read_record(attempt.folder, Diagnosis),
            decision=read_record(attempt.folder, Decision),
        )
        if outcome is None:
            ending = attempt.outcome if is_newest or not attempt.is_running else "interrupted"
            return replace(attempt, outcome=ending, ended=attempt.ended or _last_sign(attempt))
        attempt = replace(
            attempt,
            outcome=outcome.outcome,
            remedy=outcome.rung or attempt.remedy,
            changes=outcome.changes or attempt.changes,
            cause=outcome.sentence or attempt.cause,
            slug=outcome.diagnosis,
            exit_code=outcome.exit_code,
            phase=outcome.phase or attempt.phase,
            step=outcome.step_reached,
            steps=outcome.steps or attempt.steps,
            noticed_after_seconds=outcome.noticed_after_seconds,
            started=outcome.started or attempt.started,
            ended=(outcome.started or attempt.started or 0.0) + outcome.seconds,
            quiet=None,
        )
        self._ended[attempt.number] = attempt
        return attempt


def loss_of(event: ev.StepDone | ev.Logged) -> float | None:
    """The loss of a step, where it is known."""
    loss = event.loss if isinstance(event, ev.StepDone) else event.values.get("loss")
    return float(loss) if _is_number(loss) else None


def peak_bytes(attempt: Path) -> int | None:
    """The most memory that the processes of an attempt were seen to hold."""
    seen = (
        event.resident_bytes for event in new_events(EventTail(attempt / SAMPLES)) if isinstance(event, ev.TreeSampled)
    )
    return max(seen, default=0) or None


def read_request(run: Path) -> Mapping[str, Any]:
    """What was requested; refuses a folder that holds no run."""
    require_run(run)
    request = read_artifact(run / REQUEST)
    if not request:
        raise RequestError(
            f"{run / REQUEST} cannot be read",
            seen="it is not the JSON object that a run begins with",
            try_next=(f"holdfast report {run}, which shows what is left of the run",),
        )
    return request


def _read_records(run: Path) -> Records:
    names = (REQUEST, MACHINE, DATASET, DOCTOR, METRICS, MISJUDGED, RESULT)
    return Records(plan=plan_view(run), **{name.removesuffix(".json"): read_artifact(run / name) for name in names})


def _attempt_folders(run: Path) -> list[Path]:
    try:
        return [folder for folder in attempt_folders(run) if folder.is_dir()]
    except (OSError, ValueError):
        return []


def _start_of(folder: Path, number: int) -> ev.AttemptStarted:
    """How an attempt began whose event is missing, as after a full disk."""
    begun = read_record(folder, AttemptStart)
    if begun is None:
        return ev.AttemptStarted(number=number, folder=str(folder), time=_written_at(folder / RUNG))
    at = begun.started or _written_at(folder / RUNG)
    return ev.AttemptStarted(
        number=number, folder=str(folder), remedy=begun.rung, reason=begun.reason, changes=dict(begun.changes), time=at
    )


def _processes_of(attempt: Path) -> int:
    """How many processes share each step: as the settings say, or as many ranks as a command has."""
    known = read_artifact(attempt / SETTINGS).get("processes")
    return known if isinstance(known, int) else len(read_ranks(attempt)) or 1


def _last_sign(attempt: AttemptState) -> float | None:
    """When anything was last heard of an attempt that nobody saw end."""
    if attempt.is_running:
        return None
    times = [_written_at(attempt.folder / name) for name in (EVENTS, SAMPLES, OUTPUT)]
    return max((at for at in times if at), default=None)


def _written_at(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def new_events(tail: EventTail) -> Iterator[ev.Event]:
    """All that was added to a file since the last call."""
    while found := tail.read():
        yield from found


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value == value  # NaN differs from itself
