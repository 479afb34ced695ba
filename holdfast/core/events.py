"""Every event of a run: one struct each, with its fields and what it means.

The child, the supervisor and the pipeline each append events to a file as they happen (`core/event_log.py`); every view
of a run reads them back. An event states facts; sentences about it are made in `runs/wording.py`. On disk an event
is one line of JSON, with its name under "event". `docs/events.md` is generated from this file.
"""

import re
import time
from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from holdfast.core.data_warnings import DataWarning
from holdfast.core.evidence import Cause
from holdfast.core.observations import Activity, Blindness, LeftProcess
from holdfast.core.plan import Choice, Reason
from holdfast.core.prepared import SplitSize
from holdfast.core.records import Changes, Interruption, ProofResult, TrialTiming
from holdfast.core.scores import SampleAnswer


def _tag(class_name: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", class_name).lower()


class Event(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="event", tag=_tag):
    """One thing that happened, and when."""

    time: float = msgspec.field(default_factory=lambda: round(time.time(), 3))  # time of day
    pid: int | None = None  # process that wrote it, where several write to one file

    @classmethod
    def event_name(cls) -> str:
        """What the event is called on disk."""
        return _tag(cls.__name__)


class UnknownEvent(Event, frozen=True, kw_only=True):
    """An event that this version does not know, kept as it was written."""

    was: str
    fields: dict[str, Any]


# Preparing a run


class RunOpened(Event, frozen=True, kw_only=True):
    """The run has its folder."""

    folder: str


StageName = Literal["machine", "detect", "model", "prepare", "plan", "prove"]


class StageStarted(Event, frozen=True, kw_only=True):
    """A stage of the pipeline began."""

    stage: StageName
    subject: str = ""  # the file or the model it is about


class Working(Event, frozen=True, kw_only=True):
    """How far the current stage is. Sent many times a second and not written to disk."""

    what: str
    done: int = 0
    total: int | None = None
    unit: Literal["", "bytes"] = ""


class ModelNoted(Event, frozen=True, kw_only=True):
    """The model comes from an unusual place, or in another form."""

    kind: Literal["from_cache", "from_package", "converted"]
    name: str
    reason: str = ""  # what the hub answered, or why the model is converted
    package: str = ""
    size_bytes: int = 0


class FoldStarted(Event, frozen=True, kw_only=True):
    """The run of one fold begins or continues, in a folder of its own."""

    fold: int
    folds: int


class Surveyed(Event, frozen=True, kw_only=True):
    """The data was read: what it is and how it is split."""

    task: str
    form: str
    rows: int
    splits: dict[str, int]
    labels: int = 0
    choices: Mapping[str, Choice[Any]] = {}
    warnings: tuple[DataWarning, ...] = ()
    bad_row_count: int = 0


class ModelFound(Event, frozen=True, kw_only=True):
    """The model to start from is on this machine."""

    name: str
    folder: str
    source: str
    parameters: int = 0


class MachineProbed(Event, frozen=True, kw_only=True):
    """What this machine has."""

    cpu_count: int | None
    memory_bytes: int | None
    gpus: list[str] = []


class FindingReported(Event, frozen=True, kw_only=True):
    """A known hazard that this machine and plan invite."""

    slug: str
    severity: Literal["blocker", "warning", "note"]
    seen: str
    title: str


class DataPrepared(Event, frozen=True, kw_only=True):
    """The data is tokenized and on disk."""

    is_reused: bool
    seconds: float
    splits: Mapping[str, SplitSize] = {}
    bad_row_count: int = 0


class Planned(Event, frozen=True, kw_only=True):
    """The plan, each setting with its reason."""

    task: str
    choices: Mapping[str, Choice[Any]]


class ProofReported(Event, frozen=True, kw_only=True):
    """One check of the proof ended."""

    result: ProofResult


class ProofPartFailed(Event, frozen=True, kw_only=True):
    """A process of the proof failed; the run continues without what that part would have shown."""

    part: str  # "timing 5 ways to compute the same"
    outcome: Literal["finished", "died", "hung", "stopped", "interrupted"]
    cause: Cause | Interruption | None = None


class ForecastMade(Event, frozen=True, kw_only=True):
    """How long the run will take and how much memory it will need."""

    seconds: float
    peak_bytes: int | None = None
    card_peak_bytes: int | None = None  # GPU memory
    measured_steps: int = 0
    step_seconds: float | None = None
    cores: float | None = None  # cores that the run used while it was measured


class ReportWritten(Event, frozen=True, kw_only=True):
    """The HTML report of the finished run is there."""

    path: str


class ReportFailed(Event, frozen=True, kw_only=True):
    """The HTML report could not be written."""

    error: str


# Attempts, as their supervisor sees them


class AttemptStarted(Event, frozen=True, kw_only=True):
    """An attempt began: which fallback it tries, and why."""

    number: int
    fallback: str = ""  # title of the fallback; empty for the plan as requested
    reason: Reason | None = None
    cost: str = ""
    changes: dict[str, Any] = {}  # everything that differs from the plan as requested
    resume: bool = False
    folder: str = ""  # folder of this machine's part, if another machine leads


class SettingsRemembered(Event, frozen=True, kw_only=True):
    """The same run finished on this machine before with these changes, so it starts with them."""

    changes: dict[str, Any]
    command: str


class PhaseChanged(Event, frozen=True, kw_only=True):
    """The training process entered a new phase."""

    phase: str
    step: int = 0
    steps: int = 0


class Progressed(Event, frozen=True, kw_only=True):
    """Where the attempt is. Sent several times a second and not written to disk."""

    phase: str
    step: int = 0
    steps: int = 0
    resident_bytes: int = 0
    activity: Activity | None = None  # what its processes are doing


class Ticked(Event, frozen=True, kw_only=True):
    """Nothing happened; lets listeners check the run. Not written to disk."""


class Quiet(Event, frozen=True, kw_only=True):
    """No progress for a while."""

    seconds: float
    phase: str
    step: int = 0
    steps: int = 0
    activity: Activity | None = None


class FailureNoticed(Event, frozen=True, kw_only=True):
    """The attempt hangs, or its process ended too early; the evidence is collected next."""

    phase: str
    step: int = 0
    exit_code: int | None = None  # negative for a signal; None for a hang


class AttemptEnded(Event, frozen=True, kw_only=True):
    """An attempt failed; the whole outcome is in outcome.json."""

    number: int
    outcome: Literal["finished", "died", "hung", "stopped", "interrupted"]
    slug: str | None = None
    step: int = 0
    phase: str = ""
    noticed_after_seconds: float | None = None
    cause: Cause | Interruption | None = None


class CauseCorrected(Event, frozen=True, kw_only=True):
    """A crash report came after its attempt had ended, and names another cause."""

    number: int
    slug: str
    confidence: str
    cause: Cause


class WatchLimited(Event, frozen=True, kw_only=True):
    """The watcher of this system does not see everything."""

    blindness: Blindness


class Decided(Event, frozen=True, kw_only=True):
    """What follows a failed attempt."""

    action: Literal["fallback", "again", "stop"]
    fallback: str = ""
    reason: Reason | None = None


class DiskFull(Event, frozen=True, kw_only=True):
    """A disk used by the run is full."""

    folder: str = ""
    free_bytes: int | None = None


class ProcessesEnded(Event, frozen=True, kw_only=True):
    """Processes that outlived their attempt were ended."""

    processes: list[LeftProcess]
    has_finished: bool = False  # the command itself had finished


class ProcessesLeft(Event, frozen=True, kw_only=True):
    """Processes of an attempt could not be ended."""

    processes: list[LeftProcess]


class StopStarted(Event, frozen=True, kw_only=True):
    """A stop was requested; the run has this long to save and end."""

    seconds: float


class RunFinished(Event, frozen=True, kw_only=True):
    """The run finished; result.json says how."""

    exit_code: int = 0


class RunStopped(Event, frozen=True, kw_only=True):
    """The run was stopped and can be resumed."""

    exit_code: int


class RunFailed(Event, frozen=True, kw_only=True):
    """Every fallback was tried, or none could help."""

    exit_code: int


# Several machines


class MachinesAwaited(Event, frozen=True, kw_only=True):
    """The run waits for machines to join."""

    present: list[str]
    wanted: int
    seconds_left: float


class LeaderAwaited(Event, frozen=True, kw_only=True):
    """This machine waits for the leader to start the next attempt, or to hand over the run."""

    leader: str
    state: Literal["leads", "asked_to_stop", "silent", "wait_for_lease"] = "leads"
    seconds: float | None = None


class LeaderLost(Event, frozen=True, kw_only=True):
    """The leader left or stopped responding; this machine may take over."""

    leader: str
    silent_seconds: float | None = None


class StorageTrouble(Event, frozen=True, kw_only=True):
    """This machine could not write its report to the shared folder."""

    error: str


class StorageRestored(Event, frozen=True, kw_only=True):
    """The shared folder can be written again."""


# Training, as the child reports it


class RankStarted(Event, frozen=True, kw_only=True):
    """A process of a distributed job started."""

    rank: int
    world_size: int = 0


class RankEnded(Event, frozen=True, kw_only=True):
    """A rank ended with an error that it can explain; the launcher's exit code would hide it."""

    rank: int
    exit_code: int
    what: str


class RanksConnected(Event, frozen=True, kw_only=True):
    """All ranks of this machine have joined."""

    can_stop: bool = True


class TrainingStarted(Event, frozen=True, kw_only=True):
    """The engine is about to do its first step."""

    first_step: int
    steps: int
    epoch_steps: int = 0
    can_stop: bool = False  # it saves and ends when the attempt's stop file appears


class EpochStarted(Event, frozen=True, kw_only=True):
    """An epoch began; `made` counts what the task prepared for it, such as mined negatives."""

    step: int
    epoch: int
    made: Mapping[str, int] = {}


class StepDone(Event, frozen=True, kw_only=True):
    """One optimizer step finished."""

    step: int  # counted from 0
    loss: float | None = None  # None for NaN and infinity
    lr: float | None = None
    norm: float | None = None  # of the gradient, before clipping
    cpu_seconds: float | None = None  # of all processes of the engine, since they started
    card_bytes: int | None = None  # most GPU memory reserved so far


class Evaluated(Event, frozen=True, kw_only=True):
    """The model was evaluated."""

    step: int  # steps done
    metrics: dict[str, float | None]
    cpu_seconds: float | None = None
    card_bytes: int | None = None


class Sampled(Event, frozen=True, kw_only=True):
    """The model's current answers to a few examples of the validation split."""

    step: int
    samples: tuple[SampleAnswer, ...]


class Logged(Event, frozen=True, kw_only=True):
    """Numbers that a script's own trainer logged."""

    step: int
    values: dict[str, Any]
    train: int = 1


class CheckpointStarted(Event, frozen=True, kw_only=True):
    """A script's trainer began to write a checkpoint."""

    step: int
    path: str
    train: int = 1


class CheckpointSaved(Event, frozen=True, kw_only=True):
    """A checkpoint was completely written to disk."""

    step: int
    seconds: float = 0.0
    best: bool = False
    path: str = ""
    train: int = 1


class CheckpointFailed(Event, frozen=True, kw_only=True):
    """A checkpoint could not be written; training continues."""

    step: int
    reason: str
    is_full: bool = False
    train: int = 1


class CheckpointSkipped(Event, frozen=True, kw_only=True):
    """A checkpoint was left out because the disk is full, as the fallback allows."""

    step: int
    path: str
    reason: str


class CheckpointRejected(Event, frozen=True, kw_only=True):
    """A checkpoint is incomplete or damaged and was skipped on resume."""

    path: str
    reason: str
    is_damaged: bool = False  # its bytes changed after it was written


class CheckpointOverBudget(Event, frozen=True, kw_only=True):
    """Saving as often as requested takes too large a share of the run."""

    share: float
    at_stake_seconds: float


class BestCheckpointMissing(Event, frozen=True, kw_only=True):
    """The best checkpoint is missing; the last weights are kept instead."""

    step: int


class Resumed(Event, frozen=True, kw_only=True):
    """Training continues from a checkpoint."""

    step: int
    checkpoint: str = ""
    train: int = 1


class BackendChanged(Event, frozen=True, kw_only=True):
    """The checkpoint was computed by another backend: the run learns the same, but not bit for bit."""

    step: int
    before: str  # "torch" | "mlx"
    now: str


class StartedOver(Event, frozen=True, kw_only=True):
    """No usable checkpoint was found, so training starts from the beginning."""

    folder: str = ""
    train: int = 1


class BadNumbersFound(Event, frozen=True, kw_only=True):
    """The loss or the gradient is NaN or infinite."""

    reason: str
    step: int | None = None
    last_finite_step: int | None = None
    train: int = 1


class WeightsChecked(Event, frozen=True, kw_only=True):
    """The weights became NaN, or are finite again."""

    is_nan: bool
    step: int
    last_finite_step: int | None = None


class TrainingStopped(Event, frozen=True, kw_only=True):
    """Training ended on request."""

    step: int
    train: int = 1
    saved: bool = True


class TrainingFinished(Event, frozen=True, kw_only=True):
    """The engine has written the finished model."""

    steps: int
    kept_step: int
    cpu_seconds: float | None = None
    card_bytes: int | None = None


class ScriptTrained(Event, frozen=True, kw_only=True):
    """A script's trainer returned from its training call."""

    step: int
    train: int = 1


class CandidateTimed(Event, frozen=True, kw_only=True):
    """One way to compute the same step was timed, or failed."""

    number: int
    candidate: Changes
    result: TrialTiming | None = None
    error: str = ""


# What the preload saw and did inside a script


class PartUsed(Event, frozen=True, kw_only=True):
    """The script uses a part that Holdfast knows: a trainer, a data loader, torch.compile."""

    what: str
    output_dir: str | None = None
    workers: int | None = None
    train: int | None = None
    can_stop: bool = False


class FileSaved(Event, frozen=True, kw_only=True):
    """The script saved a file with torch, safetensors or accelerate; later saves of the same file are not reported."""

    path: str
    step: int = 0  # optimizer steps of this attempt before it


class ResumeForeseen(Event, frozen=True, kw_only=True):
    """How the script can resume after a failure, by its source; written at the start of the first attempt."""

    how: Literal["trainer", "lightning", "steps", "resume_args", "own_option", "none"]
    option: str = ""  # the script's own option, as one would type it


class ResumeArgsChosen(Event, frozen=True, kw_only=True):
    """Whether a new attempt gets the script's own resume arguments: only if the script has saved a checkpoint."""

    arguments: tuple[str, ...]
    checkpoint: str = ""  # newest intact file that the script saved in this run; empty: it starts over without them


class ChangeApplied(Event, frozen=True, kw_only=True):
    """A change to the settings was applied in the script."""

    change: str
    value: Any
    how: str = ""


class ChangeRefused(Event, frozen=True, kw_only=True):
    """A change to the settings cannot be applied in this script."""

    change: str
    value: Any
    because: str = ""


class HookFailed(Event, frozen=True, kw_only=True):
    """One of the preload's hooks failed; the script continues without it."""

    where: str
    error: str


class NotObserved(Event, frozen=True, kw_only=True):
    """A module or function that the preload cannot hook into."""

    module: str
    name: str = ""
    because: str = ""


class ProgramEnded(Event, frozen=True, kw_only=True):
    """The program's own code has ended; its exit handlers run next."""

    is_clean: bool
    has_raised: bool = False
    message: str = ""
    output_bytes: int | None = None


class ExitHandlersEnded(Event, frozen=True, kw_only=True):
    """The program's exit handlers have run."""


class Orphaned(Event, frozen=True, kw_only=True):
    """The supervisor is gone, so the process ends itself."""

    supervisor: int


# Samples


class TreeSampled(Event, frozen=True, kw_only=True):
    """Where an attempt's processes are and what they use; the last line of samples.jsonl saw them alive."""

    phase: str
    step: int = 0
    steps: int = 0
    resident_bytes: int = 0
    peak_bytes: int = 0  # peak since the attempt started; most samples are not written
    activity: Activity | None = None


def all_events() -> tuple[type[Event], ...]:
    """Every event that can be written, in the order of this file."""
    return tuple(one for one in Event.__subclasses__() if one is not UnknownEvent)


MOVING = (Working, Progressed, Ticked)  # shown as they arrive, never written
