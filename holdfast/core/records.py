"""The files of a run folder that hold one value each: one type, one file name, one reader and one writer.

    write_record(run, plan)              # plan.json, whole or not at all
    plan = read_record(run, RunPlan)     # None where the file is missing or damaged

`FILES` says which type is in which file. A file from a newer version may have more fields: they are ignored. Events are
not records: they are appended to one file, see `core.events`. What was observed of a failed attempt is in
`core.observations`.
"""

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec

from holdfast.core import runfolder
from holdfast.core.artifacts import read_artifact, write_artifact
from holdfast.core.errors import ErrorRecord
from holdfast.core.evidence import Cause, Decision, Diagnosis
from holdfast.core.facts import DatasetFacts, MachineFacts, ModelFacts, Task
from holdfast.core.observations import AnyObservation, ExitStatus, known_only
from holdfast.core.plan import Choice, Reason
from holdfast.core.settings import DEFAULT_MAX_ATTEMPTS, DEFAULT_NODES_WAIT, EngineSettings, TrainRequest

T = TypeVar("T")
Changes = Mapping[str, Any]  # setting or, in capitals, environment variable -> its new value
OutcomeKind = Literal["finished", "died", "hung", "stopped", "interrupted"]
ProofPart = Literal["longest", "processes", "device", "candidates", "first_steps"]
ProofReason = Literal[
    "", "as requested", "run too short", "run too short for all", "sharded weights", "no candidate timed"
]
RunEnd = Literal["finished", "stopped", "failed"]


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """What one file holds."""


# What was requested


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandRequest:
    """A request of `holdfast run`."""

    command: tuple[str, ...]
    cwd: str
    environment: Mapping[str, str] = field(default_factory=dict)  # without secrets: those come from the shell again
    resume_args: tuple[str, ...] = ()  # added to the command when earlier work is resumed
    allow_changes: bool = False
    max_attempts: int = DEFAULT_MAX_ATTEMPTS
    step_timeout_seconds: float | None = None
    remembers: bool = True
    nodes: int = 1  # machines that run it together, each with its own command line
    nodes_wait_seconds: float = DEFAULT_NODES_WAIT

    @property
    def words(self) -> str:
        """The command as typed in a shell."""
        return shlex.join(self.command)


_KINDS: Mapping[str, type[TrainRequest | CommandRequest]] = {"train": TrainRequest, "command": CommandRequest}


# What was planned, proven and forecast


class StagesDone(Record, frozen=True, kw_only=True):
    """What the artifact of each stage of the pipeline was made from, as a hash. Written by `pipeline.stages`."""

    inputs: Mapping[str, str] = {}


class FileStamp(Record, frozen=True, kw_only=True):
    """Enough to see that a file was not touched."""

    path: str
    size_bytes: int  # -1: it is not there
    changed_ns: int


class DetectedData(Record, frozen=True, kw_only=True):
    """What the data is, before all of it is read."""

    task: Task
    form: str
    roles: Mapping[str, tuple[str, ...]] = {}
    stamps: tuple[FileStamp, ...] = ()  # of every file that is read, also of those that were found next to the data


class MemoryEstimate(Record, frozen=True, kw_only=True):
    """How much memory a run needs, calculated from the sizes of model and texts."""

    need_bytes: int
    libraries_bytes: int  # the part of it that torch does not count
    free_bytes: int | None = None
    is_of_card: bool = False  # GPU memory, not the machine's


class RunPlan(Record, frozen=True, kw_only=True):
    """Every setting of a training run with its reason. Written by `pipeline.stages` alone."""

    task: str
    model: ModelFacts
    choices: Mapping[str, Choice[Any]]
    settings: EngineSettings
    memory: MemoryEstimate
    processes: int = 1  # on each machine
    nodes: int = 1
    # The last attempt before another number of processes was requested: its changes to processes no longer count.
    changed_after_attempt: int = 0


class TimedCandidate(Record, frozen=True, kw_only=True, tag="timed_candidate", tag_field="type"):
    """One way to compute the same result, timed on this machine."""

    changes: Changes  # to the planned settings
    words: str  # "2 threads fp32 packed"
    tokens_per_second: float = 0.0
    samples_per_second: float = 0.0
    peak_bytes: int | None = None
    agrees: bool = False  # its loss and gradient are those of the reference, within rounding
    loss_off: float | None = None  # relative difference
    norm_off: float | None = None
    gradient_off: float | None = None  # of the tensor whose gradient differs most
    error: str = ""
    is_chosen: bool = False
    is_reference: bool = False
    is_comparison: bool = False  # timed for comparison only


class TrialRequest(Record, frozen=True, kw_only=True):
    """The candidates that a trial process times."""

    candidates: tuple[Changes, ...]
    seconds_each: float


class TrialTiming(Record, frozen=True, kw_only=True):
    """What the engine measured of one candidate."""

    loss: float | None = None  # None: not a number
    norm: float | None = None
    gradient_off: float | None = None  # of the tensor that differs most from the reference's; None: not comparable
    steps: int = 0
    seconds: float = 0.0
    tokens_per_second: float = 0.0
    samples_per_second: float = 0.0
    peak_bytes: int | None = None
    is_packed: bool = True


class LongestExamples(Record, frozen=True, kw_only=True, tag="longest_examples", tag_field="type"):
    """The longest examples passed through a complete small run."""

    examples: int
    longest_tokens: int = 0
    is_one_machine: bool = False  # with several machines: proven on this one alone
    loss: float | None = None
    changes: Changes = {}  # that the small run needed to finish
    peak_bytes: int | None = None
    seconds: float = 0.0


class LossParity(Record, frozen=True, kw_only=True, tag="loss_parity", tag_field="type"):
    """The same small run computed in two ways."""

    against: Literal["one process", "cpu"]
    device: str = ""
    processes: int = 1
    loss: float
    reference_loss: float
    off: float  # relative difference
    agrees: bool


class FirstSteps(Record, frozen=True, kw_only=True, tag="first_steps", tag_field="type"):
    """The run's own first steps, ended by SIGKILL."""

    state: Literal["killed", "finished", "failed", "cut"]  # cut: it would have taken longer than a proof may
    steps: int = 0
    saved_step: int = 0
    peak_bytes: int | None = None


class Proof(Record, frozen=True, kw_only=True):
    """What was proven before time was spent, and what the proof changed in the plan. Written by `pipeline.prove`."""

    state: Literal["done", "remembered", "skipped"]
    reason: ProofReason = ""  # why it, or a part of it, was left out
    run_seconds: float = 0.0  # rough estimate of the run
    budget_seconds: float = 0.0  # that the proof may take; 0: as long as it needs
    seconds: float = 0.0
    fingerprint: str = ""  # of the machine and its libraries: the proof is valid only there
    remembered_words: str = ""  # the settings that an earlier run proved
    remembered_at: float | None = None
    longest: LongestExamples | None = None
    parity: tuple[LossParity, ...] = ()
    candidates: tuple[TimedCandidate, ...] = ()
    first_steps: FirstSteps | None = None
    not_proven: tuple[ProofPart, ...] = ()  # what was cut off, or too expensive
    settings: Changes = {}  # what the proof changed in the plan's settings
    variables: Mapping[str, str] = {}  # of the environment, that the attempts need
    choices: Mapping[str, Choice[Any]] = {}  # those of the plan that were replaced by a measured one


class ResumeCheck(Record, frozen=True, kw_only=True, tag="resume_check", tag_field="type"):
    """Whether the first attempt repeated the steps that the killed first steps had done after their last save."""

    is_exact: bool
    steps: int
    different_step: int | None = None  # the first step with a different loss
    loss: float | None = None
    expected_loss: float | None = None
    is_device_inexact: bool = False  # the device adds some gradients in no fixed order, so rounding may differ


class RecalledProof(Record, frozen=True, kw_only=True, tag="recalled_proof", tag_field="type"):
    """Settings that an earlier run proved on this machine."""

    words: str
    at: float  # time of day


class SkippedProof(Record, frozen=True, kw_only=True, tag="skipped_proof", tag_field="type"):
    """Why a proof was left out."""

    reason: ProofReason
    run_seconds: float = 0.0
    budget_seconds: float = 0.0


class CutProof(Record, frozen=True, kw_only=True, tag="cut_proof", tag_field="type"):
    """A part that would have taken the proof over its limit."""

    part: ProofPart
    limit_seconds: float


ProofResult = (
    LongestExamples | LossParity | TimedCandidate | FirstSteps | ResumeCheck | RecalledProof | SkippedProof | CutProof
)


class Forecast(Record, frozen=True, kw_only=True):
    """How long a run will take and how much memory it will need. Written by `pipeline.forecast`."""

    basis: Literal["model size", "earlier run", "measured steps"]
    seconds: float | None = None  # remaining when the forecast was made
    rough_seconds: float | None = None  # correct within a factor of about three
    peak_bytes: int | None = None
    card_peak_bytes: int | None = None
    made_at: float | None = None  # None for a run that is waiting to start
    steps: int = 0  # that were timed
    step_seconds: float | None = None
    cores: float | None = None  # that the engine computed with


# What happened


class Supervisor(Record, frozen=True, kw_only=True):
    """The process that supervises a run, with what distinguishes it from a later process with the same pid."""

    pid: int
    start_ticks: int | None = None
    boot_id: str = ""
    host: str = ""
    started: float = 0.0  # time of day


class ChildInfo(Record, frozen=True, kw_only=True):
    """The process that an attempt started."""

    pid: int
    start_ticks: int
    boot_id: str = ""
    command: tuple[str, ...] = ()
    cwd: str = ""


class AttemptStart(Record, frozen=True, kw_only=True):
    """What an attempt changes and why; written before its process is started."""

    number: int
    fallback: str = ""  # title of the fallback that is tried; empty for the plan as requested
    fallback_change: Changes = {}
    changes: Changes = {}  # everything that differs from the plan as requested
    reason: Reason | None = None
    started: float = 0.0  # time of day


class Interruption(Record, frozen=True, kw_only=True, tag="interruption", tag_field="type"):
    """What ended an attempt, or one machine's part of it, when no training process was at fault."""

    kind: Literal[
        "supervisor_killed",  # and the attempt with it
        "supervisor_restarted",  # on another machine, in the middle of the attempt
        "not_heard_from",  # another machine has not reported for `seconds`
        "asked_to_leave",  # a machine was stopped; the run continues when enough machines have joined
        "ended_early",  # on these machines, while the others still trained
        "unreachable",  # the ranks could not connect to the leader, `message` is torch's
        "not_started",  # `message` is the error
    ]
    nodes: tuple[str, ...] = ()
    seconds: float = 0.0
    phase: str = ""
    step: int = 0
    host: str = ""
    port: int = 0
    message: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How one attempt went; written at its end. An attempt without it is still running, or lost its supervisor."""

    number: int
    outcome: OutcomeKind
    fallback: str = ""  # title of what this attempt changed; empty for the plan as requested
    fallback_change: Changes = field(default_factory=dict)
    changes: Changes = field(default_factory=dict)  # everything that differed from the plan as requested
    exit_code: int | None = None  # of the child; negative for a signal, None for a hang
    diagnosis: str | None = None  # slug
    confidence: str = ""
    cause: Cause | None = None
    interruption: Interruption | None = None  # what ended it, if that was none of its processes
    error: str = ""
    place: str = ""
    phase: str = ""
    step_reached: int = 0
    steps: int = 0
    noticed_after_seconds: float | None = None  # from the last sign of progress until it was known
    is_external: bool = False  # ended by someone else: a kill, a stop, a machine that slept
    ineffective: tuple[str, ...] = ()  # changed settings that had no effect in this script
    seconds: float = 0.0
    started: float = 0.0  # time of day


class SupervisorNotice(Record, frozen=True, kw_only=True):
    """What a supervisor reports every few seconds, so that other machines know that it is alive."""

    pid: int = 0
    start_ticks: int | None = None
    host: str = ""
    node: str = ""  # the name of its machine in this run
    machine: str = ""  # names the machine and its start, see `runs.lease.machine_id`
    hardware: str = ""  # identifies this start of the machine; empty if unknown
    lease_seconds: float = 0.0  # silence longer than this means that it is gone
    state: Literal["held", "released", "here", "left"] = "here"

    @property
    def writer(self) -> tuple[str, int, int | None]:
        """Names the process that wrote it."""
        return self.machine, self.pid, self.start_ticks

    @property
    def is_over(self) -> bool:
        """Whether its writer has ended normally."""
        return self.state in ("released", "left")


class MeetingPlace(Record, frozen=True, kw_only=True):
    """The rendezvous of the ranks of one attempt."""

    name: str = ""
    host: str = ""  # of our own engine only
    port: int = 0


class LeaseNotice(SupervisorNotice, frozen=True, kw_only=True):
    """What the leading supervisor says: which attempt runs, on which machines, and how it should end."""

    attempt: int = 0
    nodes: tuple[str, ...] = ()  # the machines that run it, this one first
    changes: Changes = {}
    resume: bool = False
    meeting: MeetingPlace = MeetingPlace()
    end: Literal["", "look", "end", "stop"] = ""  # look: it hangs, so collect evidence before ending it
    signal: int = 0  # by which a stop was requested
    stops: int = 0  # how often
    result: RunEnd | None = None  # of the whole run, with what follows
    exit_code: int | None = None
    error: ErrorRecord | None = None  # why no attempt could begin


class MemberNotice(SupervisorNotice, frozen=True, kw_only=True):
    """What a member's supervisor reports: how its part of an attempt went, and whether it stops."""

    attempt: int = 0
    outcome: Outcome | None = None  # of its part of that attempt
    asks: int | None = None  # the signal of the stop request


class CollectedEvidence(Record, frozen=True, kw_only=True):
    """What the supervisor saw of an attempt that failed, collected before its processes were ended."""

    exit: ExitStatus | None = None
    phase: str = ""
    step: int = 0
    steps: int = 0
    resident_bytes: int | None = None  # of the whole tree
    noticed_after_seconds: float | None = None
    observations: tuple[AnyObservation, ...] = ()
    part: str = ""  # with several machines: the folder of the one that caused the failure, which has the evidence


class Compared(Record, frozen=True, kw_only=True):
    """A forecast next to what happened."""

    forecast: float | None = None
    actual: float | None = None
    error: float | None = None  # as a share of the forecast


class ComparedTime(Compared, frozen=True, kw_only=True):
    """A time forecast next to the actual time, and what the forecast could not know."""

    lost_seconds: float = 0.0  # of attempts that were cut short
    cores: Compared = Compared()  # that the run computed with


class ForecastCheck(Record, frozen=True, kw_only=True):
    """How good the forecast was."""

    seconds: ComparedTime = ComparedTime()
    peak_bytes: Compared = Compared()
    card_peak_bytes: Compared = Compared()


class Result(Record, frozen=True, kw_only=True):
    """How a run ended; written last."""

    state: RunEnd
    exit_code: int = 0
    error: ErrorRecord | None = None  # why no attempt could begin
    has_left: bool = False  # this machine left a run of several, which continues when enough machines have joined
    attempts: int = 0
    seconds: float = 0.0  # of all attempts, including those under earlier supervisors; without waiting for machines
    child_exit_code: int | None = None
    changes: Changes = {}  # what the last attempt changed in the plan as requested
    remedies: tuple[str, ...] = ()  # what a person could do, when it failed
    slug: str = ""
    # Of a training run only:
    kind: Literal["train", "command"] = "command"
    task: str = ""
    model: str | None = None  # folder of the finished model
    metrics: Mapping[str, Mapping[str, float]] = {}  # split -> name -> value
    forecast: ForecastCheck | None = None
    next: tuple[str, ...] = ()  # commands for a person


# A finished model and its use


class ModelInfo(Record, frozen=True, kw_only=True):
    """What a finished model takes and returns, so that its folder alone is enough to use it."""

    task: str
    base_model: str = ""
    labels: tuple[str, ...] = ()  # classify: in the order of their numbers
    multi_label: bool = False
    max_length: int = 0  # tokens; 0: unknown
    overlong: str = ""  # classify: "truncate" | "window"
    prefixes: Mapping[str, str] = {}  # two-tower: "query" and "passage"
    chat_template: str = ""  # causal
    form: str = ""  # two-tower: "text" | "vectors"


class WrongLabels(Record, frozen=True, kw_only=True):
    """A text that the model labels wrongly."""

    text: str
    expected: tuple[str, ...]
    predicted: tuple[str, ...] = ()
    probabilities: Mapping[str, float] = {}  # of the expected and the predicted labels
    row: int | None = None  # in the file


class MissedQuery(Record, frozen=True, kw_only=True):
    """A query whose answer is not the first result."""

    query: str
    expected: str
    found: str  # the first result
    rank: int | None = None  # of the answer; None if it was not found
    row: int | None = None


class Mistakes(Record, frozen=True, kw_only=True):
    """What a finished model gets wrong, the worst first."""

    split: str
    labels: tuple[WrongLabels, ...] = ()  # classify
    queries: tuple[MissedQuery, ...] = ()  # two-tower


class PredictOptions(Record, frozen=True, kw_only=True):
    """How to use a model; each task reads its own."""

    device: str = "auto"
    top: int = 5  # two-tower: passages per query
    max_new_tokens: int = 256  # causal
    temperature: float = 0.0  # causal; 0: always the most likely token
    seed: int = 0
    corpus: str | None = None  # two-tower: a file of passages
    run: str | None = None  # folder of the run that made the model
    prepared: str | None = None  # folder of that run's prepared data


class PredictJob(Record, frozen=True, kw_only=True):
    """The model that a process loads; `info` is None for a model that Holdfast did not make."""

    model: str  # folder
    task: str
    info: ModelInfo | None = None
    options: PredictOptions = PredictOptions()


class DemoJob(PredictJob, frozen=True, kw_only=True):
    """What the demo page shows."""

    title: str
    port: int
    is_chat: bool = False
    prompts: tuple[str, ...] = ()  # examples for a language model


class PredictProgress(Record, frozen=True, kw_only=True):
    """How far a prediction is."""

    stage: Literal["loading", "rows"] = "loading"
    done: int = 0


FILES: Mapping[type, str] = {
    MachineFacts: runfolder.MACHINE,
    DatasetFacts: runfolder.DATASET,
    DetectedData: runfolder.DETECTED,
    ModelFacts: runfolder.MODEL_FACTS,
    StagesDone: runfolder.STAGES,
    RunPlan: runfolder.PLAN,
    Proof: runfolder.PROOF,
    ResumeCheck: runfolder.RESUME_CHECK,
    Forecast: runfolder.FORECAST,
    Supervisor: runfolder.SUPERVISOR,
    Result: runfolder.RESULT,
    EngineSettings: runfolder.SETTINGS,
    AttemptStart: runfolder.START,
    ChildInfo: runfolder.CHILD,
    CollectedEvidence: runfolder.EVIDENCE,
    Diagnosis: runfolder.DIAGNOSIS,
    Decision: runfolder.DECISION,
    Outcome: runfolder.OUTCOME,
    TrialRequest: "candidates.json",
    Mistakes: runfolder.MISJUDGED,
    ModelInfo: runfolder.ABOUT_MODEL,
    PredictJob: "job.json",
    PredictProgress: "progress.json",
}


def write_record(folder: Path, record: object) -> Path:
    """Write a record to its file; a reader never sees half of it."""
    return write_artifact(folder, FILES[type(record)], record)


def read_record(folder: Path, kind: type[T]) -> T | None:
    """The record of this type in a folder; None where its file is missing or damaged."""
    return to_record(read_artifact(folder / FILES[kind]), kind)


def require_record(folder: Path, kind: type[T]) -> T:
    """The record of this type in a folder; raises where its file is missing or damaged."""
    return msgspec.json.decode((folder / FILES[kind]).read_bytes(), type=kind)


_WITH_OBSERVATIONS = (CollectedEvidence, Diagnosis, MemberNotice, Outcome)


def to_record(plain: object, kind: type[T]) -> T | None:
    """The record in a plain JSON object; None if it does not fit."""
    if kind in _WITH_OBSERVATIONS:
        plain = known_only(plain, "passage", "cause", "interruption")
    try:
        return msgspec.convert(plain, kind)
    except msgspec.ValidationError:
        return None


def write_request(folder: Path, request: TrainRequest | CommandRequest, *, data_sha256: str = "") -> Path:
    """Write the complete request; with several machines, also the SHA-256 of the data."""
    kind = "train" if isinstance(request, TrainRequest) else "command"
    plain = {"kind": kind, **msgspec.to_builtins(request), **({"data_sha256": data_sha256} if data_sha256 else {})}
    path = write_artifact(folder, runfolder.REQUEST, plain)
    if kind == "command":
        path.chmod(0o600)  # it holds the environment
    return path


def read_request(folder: Path) -> TrainRequest | CommandRequest | None:
    """What was requested; None where the file is missing or damaged."""
    plain = read_artifact(folder / runfolder.REQUEST)
    kind = _KINDS.get(str(plain.get("kind")))
    return to_record(plain, kind) if kind else None


def read_data_sha256(folder: Path) -> str:
    """The SHA-256 of the data, which must be the same on all machines; empty for a run on one machine."""
    return str(read_artifact(folder / runfolder.REQUEST).get("data_sha256") or "")
