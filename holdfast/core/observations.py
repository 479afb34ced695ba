"""What the supervisor saw of an attempt: one documented value for each kind of thing seen.

`evidence.json` holds these values, hazards match on them, and `runs/` turns them into sentences. Nothing here is text
for a person, and no sentence is parsed.
"""

import re
from enum import StrEnum
from functools import cache
from typing import Literal

import msgspec
from msgspec import Struct


class Observation(
    Struct,
    frozen=True,
    kw_only=True,
    omit_defaults=True,
    tag_field="type",
    tag=lambda name: re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower(),
):
    """One thing that was seen. In JSON its "type" is the class name in snake_case."""


class ExitStatus(Observation, frozen=True, kw_only=True):
    """How a process ended: with an exit code, by a signal, or not at all because it hung."""

    code: int | None = None
    signal: str = ""  # "SIGKILL"
    is_hang: bool = False
    line: int = 0  # of the log that says so; 0 when the supervisor saw it


# What threads and processes wait for.


class Verdict(StrEnum):
    """What a tree of processes, or one training process of it, does."""

    MOVING = "moving"
    STARVED = "starved"  # ready to run, but gets no processor
    SLEEPING = "sleeping"
    WAIT_NET = "waits_for_network"
    WAIT_INPUT = "waits_for_input"
    KERNEL = "waits_in_kernel"
    STOPPED = "stopped"
    TIMED = "waits_for_limited_time"
    DEADLOCK = "deadlock"
    CRASH_LOOP = "crash_loop"
    DEBUGGED = "in_debugger"


# The last three can only be ended from inside: by a thread of the same process, or by other processes of the tree.
WaitKind = Literal[
    "run", "stopped", "traced", "kernel", "device", "net", "listen", "input", "sleep", "timed",
    "lock", "interpreter", "tree",
]  # fmt: skip


_LOADER_WORKERS = ("pt_data_worker",)


class WaitTarget(StrEnum):
    """What exactly a thread waits for. The comment says what `Wait.name` holds."""

    NOTHING = "nothing"  # it runs
    DEBUGGER = "debugger"
    STOP_SIGNAL = "stop_signal"
    FROZEN_CGROUP = "frozen_cgroup"
    KERNEL = "kernel"  # the kernel function
    SYSTEM_CALL = "system_call"  # the call
    FILE = "file"  # its path
    UNKNOWN = "unknown"  # the kernel function
    LOCK = "lock"
    SHARED_LOCK = "shared_lock"  # between processes
    LOCK_WITH_TIMEOUT = "lock_with_timeout"
    INTERPRETER_LOCK = "interpreter_lock"
    TIMEOUT = "timeout"  # the kernel function
    SLEEP = "sleep"
    TIMER = "timer"
    SIGNAL = "signal"
    OWN_THREAD = "own_thread"  # another thread of the process
    PROCESSES = "processes"  # `Wait.wakers`
    CHILD = "child"
    HIDDEN_CHILD = "hidden_child"  # another user's, perhaps
    PROCESS_END = "process_end"
    OPEN = "open"  # the path to open
    OPEN_FIFO = "open_fifo"  # the path of a FIFO that is not open at the other end
    FIFO = "fifo"  # its path
    PIPE = "pipe"  # the kernel's name of it
    FILE_LOCK = "file_lock"  # the path of the file
    TERMINAL = "terminal"  # its path
    DEVICE = "device"  # its path
    KERNEL_OBJECT = "kernel_object"  # the kernel's name of it, such as "inotify"
    ADDRESS = "address"  # of a server
    CONNECTING = "connecting"  # the address of a server
    LISTENING = "listening"  # the own address
    LOCAL_SOCKET = "local_socket"  # its path
    SOCKET = "socket"  # the kernel's name of it


APPLE_GPU = "Apple GPU"  # the `Wait.name` of a device that has no path


class Wait(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What one thread waits for."""

    kind: WaitKind
    target: WaitTarget
    name: str = ""  # path, address or kernel function, see `WaitTarget`
    function: str = ""  # the kernel function, where `name` is something else
    wakers: frozenset[int] = frozenset()  # the processes that can end it, where only these can
    silent_seconds: float | None = None  # since the last byte came in over the network; None when not known
    is_lost: bool = False  # the other end of the connection does not even acknowledge


def _is_for_disk(wait: Wait) -> bool:
    """True for a wait in the kernel that a disk or a file server ends, and not the end of another's use of memory."""
    if wait.target is WaitTarget.SYSTEM_CALL:
        return wait.name in _FILE_CALLS
    return "oom" not in wait.name and "oom" not in wait.function


_FILE_CALLS = ("fsync", "fdatasync", "sync", "syncfs", "stat64", "lstat64", "fstat64", "pwrite", "getdirentries64")


class OutsideWait(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A wait for something outside of the training that is alive: it may take long, and no setting makes it shorter."""

    kind: Literal["child", "server", "client", "file_lock", "sleep", "disk"]
    pid: int | None = None  # of the child, or of the process that holds the lock
    name: str = ""  # of the child, the server, the locked file, or the kernel function


class WaitingThread(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A thread that could end another's wait, and what it waits for itself."""

    pid: int
    tid: int
    name: str
    wait: Wait


class StuckProcess(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A process whose main thread waits for a lock that no process can release."""

    pid: int
    command: str  # its short name in the kernel


class RankVerdict(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What one training process does."""

    pid: int
    verdict: Verdict
    rank: int | None = None
    wait: Wait | None = None  # of its main thread
    helper: WaitingThread | None = None  # the process that could end this wait, if it is waiting too
    stuck: StuckProcess | None = None  # in a deadlock; None when its processes wait for each other
    cpu_share: float | None = None  # share of one processor, when busy

    @property
    def last_wait(self) -> Wait | None:
        """What the process ultimately waits for: the helper's wait, or else the main thread's."""
        return self.helper.wait if self.helper else self.wait

    @property
    def is_own_timer(self) -> bool:
        """True when its main thread itself sleeps, or waits for a limited time."""
        return self.helper is None and self.wait is not None and self.wait.kind in ("sleep", "timed")

    @property
    def outside(self) -> OutsideWait | None:
        """What outside of the training is waited for, where that is alive; None for every other wait."""
        wait, helper = self.last_wait, self.helper
        if wait is None or self.verdict in (Verdict.DEADLOCK, Verdict.STOPPED, Verdict.DEBUGGED):
            return None
        if wait.kind == "net" and not wait.is_lost and wait.target is not WaitTarget.CONNECTING:
            return OutsideWait(kind="server", name=wait.name)
        if wait.kind == "kernel" and _is_for_disk(wait):
            return OutsideWait(kind="disk", name=wait.function or wait.name)
        if wait.target is WaitTarget.FILE_LOCK:
            return OutsideWait(kind="file_lock", name=wait.name, pid=min(wait.wakers, default=None))
        if helper and helper.pid != self.pid:  # a FIFO or a terminal that a child reads is no sign of life
            is_alive = wait.kind in ("run", "sleep", "timed", "net", "listen") and helper.name not in _LOADER_WORKERS
            return OutsideWait(kind="child", pid=helper.pid, name=helper.name) if is_alive else None
        if wait.target is WaitTarget.HIDDEN_CHILD:
            return OutsideWait(kind="child")
        if helper is None and wait.kind == "listen":
            return OutsideWait(kind="client", name=wait.name)
        return OutsideWait(kind="sleep") if helper is None and wait.kind == "sleep" else None


class TreeVerdict(Observation, frozen=True, kw_only=True):
    """What the whole tree of processes does."""

    verdict: Verdict
    state: Literal["", "starting", "progressing", "ended"] = ""  # moving because of that
    pids: tuple[int, ...] = ()  # the processes that show it
    cpu_share: float | None = None  # of one processor, when it is busy
    given_share: float = 1.0  # the share of the requested processor time that the tree got
    main: RankVerdict | None = None  # of the process that decides, when the tree is quiet
    failed_children: int = 0  # in a crash loop, within `window_seconds`
    window_seconds: float = 0.0
    child_exit: ExitStatus | None = None  # of the last of them; None if it was not seen
    has_inner_debugger: bool = False  # one that works over the network and holds nothing
    has_left_tree: bool = False  # a process that left the tree may end the wait
    ranks: tuple[RankVerdict, ...] = ()  # one for each training process, the one that holds up the others first

    @property
    def silent_seconds(self) -> float | None:
        """How long nothing has arrived over the network, if that is what the process waits for."""
        wait = self.main.last_wait if self.main else None
        return wait.silent_seconds if wait else None

    @property
    def is_own_timer(self) -> bool:
        """True when the main thread itself sleeps, or waits for a limited time."""
        return self.main is not None and self.main.is_own_timer

    @property
    def outside(self) -> OutsideWait | None:
        """What outside of the training is waited for, where that is alive."""
        return self.main.outside if self.main else None


class Activity(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the processes of a running attempt are doing, and when their wait will be given up."""

    verdict: TreeVerdict
    waited_seconds: float = 0.0
    limit_seconds: float | None = None  # None: nothing is waited for
    outside: OutsideWait | None = None  # what that is, where it is outside of the training and alive


GivenUpReason = Literal[
    "verdict",  # a deadlock, a stopped process, a crash loop: more time changes nothing
    "wait_too_long",
    "outside_too_long",  # for something outside that is alive: no setting is to blame
    "step_timeout",  # the user's own limit
    "busy_stacks_unseen",
    "busy_stack_still",
    "busy_stack_moves",
]


Unseen = Literal["threads", "waits", "wait_targets_without_stacks", "exits", "descendants"]
Question = Literal["process_exits", "disks", "waits"]


class GivenUp(Observation, frozen=True, kw_only=True):
    """Why the hang rule ended the attempt."""

    reason: GivenUpReason
    is_busy: bool = False
    phase: str = ""
    seconds: float = 0.0  # without progress
    limit_seconds: float = 0.0


class LastPhase(Observation, frozen=True, kw_only=True):
    """How far the attempt was."""

    phase: str
    step: int = 0
    steps: int = 0


class Blindness(Observation, frozen=True, kw_only=True):
    """What the watcher of this system cannot see; a hang there is noticed later."""

    system: Literal["macos", "portable"]
    unseen: tuple[Unseen, ...]


class Asked(Observation, frozen=True, kw_only=True):
    """Which questions could be asked of this attempt on this system; only these can be ruled out."""

    questions: tuple[Question, ...]


# Single processes.


class ProcessView(Observation, frozen=True, kw_only=True):
    """A detailed view of one process in a tree that makes no progress."""

    pid: int
    command: str
    threads: int = 1
    wait: Wait | None = None  # of its main thread
    system_call: str = ""  # in which the main thread waits
    has_timeout: bool = True  # of a wait in `futex`
    caller: str = ""  # the library that made the call
    forked_from: int | None = None  # the parent, if the process is a fork that never called exec
    parent_threads: int = 0
    libraries: tuple[str, ...] = ()  # loaded libraries that are known to cause trouble
    tracer_pid: int = 0  # of a debugger
    frozen_cgroup: str = ""

    @property
    def is_fork_in_lock(self) -> bool:
        """True for a forked child whose main thread waits for a lock: perhaps one it inherited."""
        return self.forked_from is not None and self.wait is not None and self.wait.kind == "lock"


class MutexWait(Observation, frozen=True, kw_only=True):
    """A thread that waits for a native mutex that will never be released."""

    pid: int
    command: str
    tid: int
    owner_tid: int
    how: Literal["orphaned_by_fork", "own", "mutual"]
    parent_pid: int | None = None  # when the owner is a thread of the parent


class ProcessExit(Observation, frozen=True, kw_only=True):
    """How a process other than the root ended, by its exit status."""

    pid: int
    name: str  # the kernel's short name of it
    status: ExitStatus
    rank: int | None = None
    is_first: bool = False  # the first rank to end while others were still working
    phase: str = ""  # where it was
    step: int = 0

    @property
    def is_loader_worker(self) -> bool:
        """True for a worker of torch's data loader, by the name that torch gives it."""
        return self.name in _LOADER_WORKERS


class LeftProcess(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A process that outlived its attempt."""

    pid: int
    name: str = ""  # the kernel's short name of it
    held_by: Literal["", "frozen_cgroup", "debugger", "kernel"] = ""  # why SIGKILL did not end it
    holder: str = ""  # the cgroup, the debugger's pid, or the kernel function


class FailedExits(Observation, frozen=True, kw_only=True):
    """How many processes ended in failure, when not all of them are listed."""

    count: int


# Who is known to send SIGKILL and to leave a trace of it.
KillSender = Literal["", "systemd-oomd", "earlyoom", "slurm_time_limit", "slurm_preemption", "slurm_cancel"]


class KilledExternally(Observation, frozen=True, kw_only=True):
    """A signal that ended the attempt and came neither from Holdfast, nor the program, nor the OOM killer."""

    signal: str
    victim: Literal["root", "launcher", "rank", "worker"] = "root"
    pid: int | None = None
    rank: int | None = None
    name: str = ""
    sender: KillSender = ""  # empty: not known
    sender_note: str = ""  # what it wrote about it, in its own words


class CodePlace(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A line of a program."""

    file: str
    line: int
    function: str = ""
    source: str = ""  # what the line says

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


class OwnCode(Observation, frozen=True, kw_only=True):
    """The line of the user's own program at which an attempt hung or crashed."""

    how: Literal["waits_for_own_lock", "hung", "crashed", "ended_itself"]
    place: CodePlace
    call: str = ""  # the call that ended it, such as "os.abort()"


class ProgramExit(Observation, frozen=True, kw_only=True):
    """A program that ended itself without a traceback, and its last words."""

    message: str = ""  # of the SystemExit
    last_line: str = ""  # last line of output, if there is no message
    crashed_after: Literal["", "exit_handler", "process"] = ""  # what crashed after the program had decided to end


class RankStack(Observation, frozen=True, kw_only=True):
    """Where a rank of a distributed job is, by its stack."""

    rank: int
    pid: int
    place: CodePlace
    collective: str = ""  # the collective in which it waits for the other ranks
    call: str = ""  # the call at that place, if the rank is not in a collective
    holds_up: bool = False  # the others wait for it


# Memory and disks.


class OomKill(Observation, frozen=True, kw_only=True):
    """The kernel counted processes that it killed for memory."""

    kills: int
    cgroup: str = ""  # empty: counted in the whole system, and no control group says whose
    limit_bytes: int | None = None
    peak_bytes: int | None = None


class OomKillerOff(Observation, frozen=True, kw_only=True):
    """A control group is out of memory with its OOM killer switched off, so allocating processes wait."""

    cgroup: str
    limit_bytes: int | None = None
    peak_bytes: int | None = None


class NoOomKill(Observation, frozen=True, kw_only=True):
    """The kernel's counters show no kill of our processes."""

    cgroups: tuple[str, ...] = ()
    limit_bytes: int | None = None  # the smallest of them
    is_system_asked: bool = False
    other_kills: int = 0  # of processes that are not ours


class KernelKill(Observation, frozen=True, kw_only=True):
    """A line of the kernel's log about one of our processes that it killed for memory."""

    text: str
    pid: int
    name: str = ""
    resident_bytes: int | None = None


class JetsamKill(Observation, frozen=True, kw_only=True):
    """A process of ours that macOS ended for memory."""

    pid: int
    name: str
    reason: str  # as macOS words it
    resident_bytes: int = 0


class MemoryRoom(Observation, frozen=True, kw_only=True):
    """How little memory the machine had left while an attempt ran; asked where the kernel counts no kills."""

    lowest_free_bytes: int
    total_bytes: int
    peak_bytes: int = 0  # of the attempt's processes

    @property
    def is_ample(self) -> bool:
        """True when memory was never near its end."""
        return self.lowest_free_bytes >= 0.1 * self.total_bytes and self.peak_bytes < 0.5 * self.total_bytes


class MemoryUse(Observation, frozen=True, kw_only=True):
    """How much memory the tree held over time."""

    last_bytes: int
    peak_bytes: int
    growth_per_step: float = 0.0  # bytes, when it grew step by step
    since_step: int = 0


class DiskSpace(Observation, frozen=True, kw_only=True):
    """The space left on a file system that the attempt may write to."""

    folder: str
    free_bytes: int
    total_bytes: int
    is_output: bool = False  # the program's own output goes there
    is_out_of_inodes: bool = False

    @property
    def is_shared_memory(self) -> bool:
        """True for the file system of shared memory, which is not a disk."""
        return self.folder == "/dev/shm"

    @property
    def is_full(self) -> bool:
        """True when there is almost no space left."""
        return self.free_bytes < 1_000_000 or self.is_out_of_inodes


# What the training itself reported.


class NonFiniteNumbers(Observation, frozen=True, kw_only=True):
    """A loss, a gradient or the weights became NaN or infinite."""

    step: int
    reason: str = ""
    last_finite_step: int | None = None  # of the weights


class UnusableCheckpoint(Observation, frozen=True, kw_only=True):
    """A checkpoint that could not be used."""

    path: str
    reason: str
    is_incomplete: bool = False


class UnsavedCheckpoint(Observation, frozen=True, kw_only=True):
    """A checkpoint that could not be saved because the disk was full."""

    step: int


class FailedProbe(Observation, frozen=True, kw_only=True):
    """A failed probe of the supervisor; the others were still made."""

    probe: str
    error: str


class UnknownObservation(Observation, frozen=True, kw_only=True):
    """An observation that a newer version of Holdfast wrote, kept as it was."""

    fields: dict[str, object]


AnyObservation = (
    ExitStatus | TreeVerdict | GivenUp | LastPhase | ProcessView | MutexWait | ProcessExit | FailedExits
    | Blindness | Asked | KilledExternally | OwnCode | ProgramExit | RankStack
    | OomKill | OomKillerOff | NoOomKill | KernelKill
    | JetsamKill | MemoryRoom | MemoryUse | DiskSpace | NonFiniteNumbers | UnusableCheckpoint | UnsavedCheckpoint
    | FailedProbe | UnknownObservation
)  # fmt: skip


@cache
def _tags() -> frozenset[str]:
    return frozenset(str(kind.__struct_config__.tag) for kind in Observation.__subclasses__())


def known_only(plain: object, *other_types: str) -> object:
    """The same JSON with observations of a newer version wrapped as unknown ones, so that it can be decoded."""
    if isinstance(plain, list):
        return [known_only(item, *other_types) for item in plain]
    if not isinstance(plain, dict):
        return plain
    if plain.keys() == {"source", "line", "text"}:  # a line of evidence, as an earlier version wrote it
        return {"type": "passage", **plain, "source": "log"}
    if "type" in plain and plain["type"] not in (*_tags(), *other_types):
        return {"type": "unknown_observation", "fields": plain}
    return {name: known_only(item, *other_types) for name, item in plain.items()}


def to_observation(plain: object) -> Observation:
    """Decode an observation from JSON; an unknown or damaged one is kept unchanged."""
    try:
        found: Observation = msgspec.convert(known_only(plain), AnyObservation)
        return found
    except msgspec.ValidationError:
        return UnknownObservation(fields=plain if isinstance(plain, dict) else {"value": plain})
