"""The state of a run: folded from its events and its records, and the only source of every view of a run.

    state = read_state(run)                    # now, from the folder alone; refuses a folder without a run
    for state in watch(run): ...               # twice a second, until the run has ended
    reader = RunReader(run); reader.read()     # repeatedly, at the cost of new events only: for pages
    state = apply(state, event)                # one event as it happens: for the process that supervises the run

The command line, the pages, the API and the report take a `RunState` and words for it from `runs/wording.py`; nothing
else reads a run folder to say where a run stands. A page keeps one `RunReader` for each run that is looked at, calls
`read()` for each view (it may be called from several threads), and passes what its own database knows better, such as
whether somebody works on the run, as `is_supervised`. A file that is missing, half or strange is as if it were absent.
"""

import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from msgspec.structs import replace

from holdfast.core import events as ev
from holdfast.core.event_log import EventTail, find_last
from holdfast.core.evidence import Decision, Diagnosis
from holdfast.core.facts import DatasetFacts, MachineFacts
from holdfast.core.records import (
    AttemptStart,
    Forecast,
    Mistakes,
    Outcome,
    Proof,
    Result,
    RunPlan,
    read_record,
    read_request,
)
from holdfast.core.runfolder import (
    EVENTS,
    OUTPUT,
    SAMPLES,
    START,
    attempt_folders,
)
from holdfast.core.scores import read_metrics
from holdfast.core.settings import EngineSettings
from holdfast.runs.earlier_attempts import is_left_running
from holdfast.runs.nodes import MachineWatch
from holdfast.runs.run_path import require_run
from holdfast.runs.state_values import AttemptEnd, AttemptState, Curves, Records, RunState
from holdfast.supervisor.child_exits import read_ranks
from holdfast.supervisor.outcome import newest_beat

__all__ = [
    "AttemptState",
    "Records",
    "RunReader",
    "RunState",
    "apply",
    "fold",
    "new_events",
    "peak_bytes",
    "read_records",
    "read_state",
    "read_whole_state",
    "watch",
    "with_result",
]

_MOST_POINTS = 4000  # of one curve; a chart draws 500
_RECENT_BYTES = 1 << 19  # of the newest attempt's events, where only the present is asked for
_WATCH_SECONDS = 0.5


def fold(events: Iterable[ev.Event], records: Records = Records(), folder: Path = Path()) -> RunState:  # noqa: B008
    """The state of a run, from the events of its supervisor and its training process, in order, and from its files."""
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
            state = replace(state, stage=event.stage, working=None, waiting=None)
        case ev.MachinesAwaited() | ev.LeaderAwaited():
            state = replace(state, waiting=event)
        case ev.AttemptStarted():
            state = replace(_with_attempt(state, event), waiting=None, working=None, stage="")
        case ev.StopStarted():
            state = replace(state, is_stopping=True)
        case ev.RunFinished() | ev.RunFailed() | ev.RunStopped():
            state = replace(state, waiting=None, is_stopping=False)
    if type(event) in _HISTORY:
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
        fallback=event.fallback,
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
        case ev.CauseCorrected():
            return replace(attempt, slug=event.slug, cause=event.cause)
        case ev.RunFinished() | ev.RunStopped() if attempt.is_running:
            ending: AttemptEnd = "finished" if isinstance(event, ev.RunFinished) else "stopped"
            return replace(attempt, outcome=ending, ended=event.time, quiet=None)
    return attempt


def _seen(attempt: AttemptState, event: ev.Progressed | ev.TreeSampled, curves: Curves) -> AttemptState:
    """What the supervisor saw of it from outside."""
    curves.see_step(event.step, event.time)
    has_moved = event.step > attempt.step or event.phase != attempt.phase
    memory, peak = attempt.memory, event.peak_bytes if isinstance(event, ev.TreeSampled) else 0
    if isinstance(event, ev.TreeSampled) and event.resident_bytes:
        memory = (*(memory if len(memory) < _MOST_POINTS else memory[::2]), (event.time, event.resident_bytes))
    return replace(
        attempt,
        phase=event.phase or attempt.phase,
        step=max(attempt.step, event.step),
        steps=event.steps or attempt.steps,
        resident_bytes=event.resident_bytes or attempt.resident_bytes,
        peak_bytes=max(attempt.peak_bytes or 0, event.resident_bytes, peak) or None,
        activity=event.activity,
        quiet=None if has_moved else attempt.quiet,
        memory=memory,
    )


# What the training process itself writes, into the file of its attempt. Some of it is also passed on to the run's file.
OF_TRAINING = (
    *(ev.TrainingStarted, ev.EpochStarted, ev.StepDone, ev.Evaluated, ev.Sampled, ev.Logged, ev.ScriptTrained),
    *(ev.CheckpointStarted, ev.CheckpointSaved, ev.CheckpointFailed, ev.CheckpointSkipped, ev.CheckpointRejected),
    *(ev.CheckpointOverBudget, ev.BestCheckpointMissing, ev.Resumed, ev.BackendChanged, ev.StartedOver),
    *(ev.BadNumbersFound, ev.WeightsChecked, ev.TrainingStopped, ev.TrainingFinished),
    *(ev.PartUsed, ev.FileSaved, ev.ResumeForeseen, ev.ResumeArgsChosen, ev.ChangeApplied, ev.ChangeRefused),
)

# What the history of a run shows. The rest comes by the thousand, or is in the attempt.
_HISTORY = frozenset(
    {
        *(ev.StageStarted, ev.Surveyed, ev.ModelFound, ev.MachineProbed, ev.FindingReported, ev.DataPrepared),
        *(ev.Planned, ev.ProofReported, ev.ProofPartFailed, ev.ForecastMade, ev.ModelNoted),
        *(ev.ReportWritten, ev.ReportFailed, ev.HookFailed, ev.Orphaned),
        *(ev.AttemptStarted, ev.SettingsRemembered, ev.Quiet, ev.AttemptEnded, ev.Decided, ev.DiskFull),
        *(ev.ProcessesEnded, ev.ProcessesLeft, ev.StopStarted, ev.RunFinished, ev.RunStopped, ev.RunFailed),
        *(ev.MachinesAwaited, ev.LeaderAwaited, ev.LeaderLost, ev.StorageTrouble, ev.StorageRestored, ev.UnknownEvent),
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


def with_result(state: RunState, result: Result) -> RunState:
    """The state as this process saw the run end; on a machine that left the run, its folder says otherwise."""
    return replace(state, records=replace(state.records, result=result))


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
        # The engine saves and stops by itself when its supervisor is killed: only a supervisor writes an outcome.
        has_outcome = bool(attempts) and attempts[-1].number in self._ended
        if attempts and not (has_outcome or is_led or is_orphaned) and attempts[-1].outcome in ("running", "stopped"):
            attempts[-1] = replace(attempts[-1], outcome="interrupted")
        return replace(
            state,
            attempts=tuple(attempts),
            records=read_records(run),
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
            fallback=outcome.fallback or attempt.fallback,
            changes=outcome.changes or attempt.changes,
            cause=outcome.cause or outcome.interruption or attempt.cause,
            slug=outcome.diagnosis,
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


def peak_bytes(folder: Path) -> int | None:
    """The most memory that the processes of any attempt in a folder held; None where none was seen training."""
    events = (event for file in folder.rglob(SAMPLES) for event in new_events(EventTail(file)))
    samples = [event for event in events if isinstance(event, ev.TreeSampled)]
    if not any(sample.step or sample.phase == "step" for sample in samples):
        return None  # what a process holds while it starts says nothing about training
    return max(max(sample.resident_bytes, sample.peak_bytes) for sample in samples) or None


def read_records(run: Path) -> Records:
    """What the folder of a run holds besides events."""
    return Records(
        request=read_request(run),
        machine=read_record(run, MachineFacts),
        dataset=read_record(run, DatasetFacts),
        plan=read_record(run, RunPlan),
        proof=read_record(run, Proof),
        forecast=read_record(run, Forecast),
        metrics=read_metrics(run),
        mistakes=read_record(run, Mistakes),
        result=read_record(run, Result),
    )


def _attempt_folders(run: Path) -> list[Path]:
    try:
        return [folder for folder in attempt_folders(run) if folder.is_dir()]
    except (OSError, ValueError):
        return []


def _start_of(folder: Path, number: int) -> ev.AttemptStarted:
    """How an attempt began whose event is missing, as after a full disk."""
    begun = read_record(folder, AttemptStart)
    if begun is None:
        return ev.AttemptStarted(number=number, folder=str(folder), time=_written_at(folder / START))
    at = begun.started or _written_at(folder / START)
    return ev.AttemptStarted(
        number=number,
        folder=str(folder),
        fallback=begun.fallback,
        reason=begun.reason,
        changes=dict(begun.changes),
        time=at,
    )


def _processes_of(attempt: Path) -> int:
    """How many processes share each step: as the settings say, or as many ranks as a command has."""
    settings = read_record(attempt, EngineSettings)
    return settings.processes if settings else len(read_ranks(attempt)) or 1


def _last_sign(attempt: AttemptState) -> float | None:
    """The time of the last sign of life of an attempt whose end was not recorded."""
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
