"""Facts about a machine, a dataset or a model. Filled once, by `machine`, `data` or `models`, then only read.

A fact that could not be determined is None or empty, and its probe is listed in `unanswered` with the reason.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Generic, Literal, TypeVar, get_args

from holdfast.core.data_warnings import DataWarning
from holdfast.core.plan import Choice

T = TypeVar("T")
Task = Literal["classify", "causal", "two-tower"]
TASKS: tuple[Task, ...] = get_args(Task)
SPLITS = ("train", "validation", "test")


@dataclass(frozen=True, slots=True)
class Requirement:
    """What an installed distribution needs of another one."""

    by: str
    by_version: str
    name: str
    specifier: str  # ">=4.30,<5"; empty for any version


@dataclass(frozen=True, slots=True)
class Answer(Generic[T]):
    """The answer of a probe and its source."""

    value: T
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One accelerator as listed by the system or the driver."""

    name: str
    kind: Literal["cuda", "mps", "rocm", "xpu"]
    memory_bytes: int | None = None
    free_bytes: int | None = None
    has_bf16: bool = False
    capability: str = ""  # CUDA compute capability, such as "9.0"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceTrial:
    """The outcome of one training step that a short-lived child process made on a device."""

    device: str  # "cpu", "mps", "cuda:0"
    outcome: Literal["agrees", "differs", "error", "crash", "hang"]
    detail: str  # loss and gradient compared with the CPU's, the error, the signal, or how long it hung
    seconds: float
    signal: str = ""  # that ended a crashed child, such as "SIGSEGV"
    error: str = ""  # the child's last error message


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuProcess:
    """Another process that holds GPU memory."""

    pid: int
    name: str
    user: str
    memory_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Disk:
    """A folder that a run writes to, and the space there."""

    role: Literal["output", "cache", "temp"]
    path: str
    free_bytes: int
    total_bytes: int
    filesystem: str = ""
    free_inodes: int | None = None
    is_writable: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Variable:
    """An environment variable that matters, and its actual effect."""

    name: str
    value: str
    effect: str
    source: str = ""  # the source for that effect
    verdict: Literal["works", "useless", "harmful"] = "works"


@dataclass(frozen=True, slots=True, kw_only=True)
class CachedModel:
    """A model in the hub's cache."""

    name: str
    bytes: int
    complete: bool  # False if a download was interrupted


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchBuild:
    """What the installed torch was built for, read from its files without importing it."""

    version: str
    cuda: str | None = None  # "12.8"; None for a build without CUDA
    rocm: str | None = None
    mps: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Power:
    """Power and sleep on a Mac."""

    on_battery: bool
    sleep_after_minutes: int | None = None  # None: never
    low_power_mode: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class NativeConflict:
    """Two distributions that each bring a native runtime, and what happens when both are loaded."""

    runtime: Literal["openmp", "protobuf"]
    first: str  # "torch 2.8.0", loaded first
    second: str
    copies: int
    outcome: Literal["shared", "coexists", "tolerated", "crash", "hang", "abort", "not-found"]
    because: str
    files: tuple[str, ...] = ()  # the copies that get loaded, in order
    when: str = ""  # the condition, if the folder alone does not decide: "Homebrew's libomp is installed"


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineFacts:
    """Facts about this machine, or about a folder of installed packages for another one."""

    os: str = ""  # "linux" | "macos" | "windows"
    os_version: str = ""
    arch: str = ""  # "arm64" | "x86_64" | "aarch64", of this Python
    chip: str = ""  # "Apple M2 Pro", "AMD EPYC 9R14"
    is_rosetta: bool = False  # an Intel Python on an Apple chip
    in_container: bool = False
    python_version: str = ""
    python_build: str = ""  # "CPython, conda-forge, Clang 16.0.6"
    python_path: str = ""
    start_method: str = ""  # multiprocessing's default here
    cpu_count: int | None = None  # what this process may use, not what the machine has
    cpu_count_physical: int | None = None
    cpu_flags: tuple[str, ...] = ()  # "avx2", "avx512f", "amx_bf16", ...
    memory_bytes: int | None = None  # after any container limit
    memory_physical_bytes: int | None = None
    memory_free_bytes: int | None = None
    swap_bytes: int | None = None
    shm_bytes: int | None = None  # shared-memory mount; None where the system has none
    shm_free_bytes: int | None = None
    open_file_limit: int | None = None
    disks: tuple[Disk, ...] = ()
    distributions: Mapping[str, str] = field(default_factory=dict)  # canonical name -> version
    unmet: tuple[Requirement, ...] = ()  # requirements of installed distributions that the installed versions violate
    torch: TorchBuild | None = None
    gpus: tuple[Gpu, ...] = ()
    driver_version: str = ""  # of the NVIDIA driver
    driver_cuda: str = ""  # newest CUDA version the driver supports
    trials: tuple[DeviceTrial, ...] = ()
    gpu_processes: tuple[GpuProcess, ...] = ()
    variables: tuple[Variable, ...] = ()
    models: tuple[CachedModel, ...] = ()
    power: Power | None = None
    openmp_runtimes: tuple[str, ...] = ()  # one entry per copy that installed packages carry
    conflicts: tuple[NativeConflict, ...] = ()
    unanswered: tuple[str, ...] = ()  # probes that could not answer, each with its reason
    sources: Mapping[str, str] = field(default_factory=dict)  # fact -> its source

    def has_at_least(self, name: str, version: str) -> bool:
        """True if the distribution is installed in this version or a later one."""
        installed = release(self.distributions.get(name, ""))
        return bool(installed) and installed >= release(version)

    def has_below(self, name: str, version: str) -> bool:
        """True if the distribution is installed in an earlier version."""
        installed = release(self.distributions.get(name, ""))
        return bool(installed) and installed < release(version)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts:
    """Facts about a model, from its own files."""

    name: str
    folder: str
    source: str = ""  # where it came from, as text
    kind: str = ""  # model_type of its configuration, such as "bert"
    parameters: int = 0
    layers: int = 0
    hidden: int = 0
    inner: int = 0  # width of the feed-forward layer
    vocabulary: int = 0
    positions: int | None = None  # maximum number of tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class BadRow:
    """An unusable row and the reason."""

    file: str
    row: int  # line number in text files, otherwise the record number; counted from 1
    column: str = ""
    value: str = ""  # as found, shortened
    kind: str = ""  # such as "text-missing"; see `data.badrows`
    reason: str  # the kind as a phrase


LengthUnit = Literal["tokens", "words", "characters"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Lengths:
    """The length distribution of the texts of one role."""

    unit: LengthUnit
    median: float
    mean: float
    p95: int
    p99: int
    longest: int
    measured: int  # number of texts measured
    limit: int | None = None  # maximum length of the model
    over_limit: int = 0  # of those measured


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetFacts:
    """Facts about a dataset, and how it will be read."""

    task: Task
    form: str  # "one label", "several labels", "instruction", "messages", "pairs", "beir", "vectors", ...
    rows: int  # usable rows of all splits
    columns: tuple[str, ...]
    text_column: str | None = None  # names joined by " + " if several are read as one text
    label_column: str | None = None
    roles: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # "query" -> ("question",)
    labels: Mapping[str, int] = field(default_factory=dict)  # name -> rows, in the order of their numbers
    multi_label: bool = False
    splits: Mapping[str, int] = field(default_factory=dict)  # "train", "validation", "test" -> rows
    lengths: Mapping[str, Lengths] = field(default_factory=dict)  # by role
    warnings: tuple[DataWarning, ...] = ()
    bad_rows: tuple[BadRow, ...] = ()  # the first ones
    bad_row_count: int = 0
    incomplete_row_count: int = 0  # of them, rows that only lack a text, a label or an answer
    choices: Mapping[str, Choice[str]] = field(default_factory=dict)  # what was chosen, and why
    files: tuple[str, ...] = ()
    fingerprint: str = ""  # of the files' contents


def meets(version: str, specifier: str) -> bool:
    """True if a version satisfies every part of a specifier such as ">=4.30,<5"; an unreadable part is satisfied."""
    installed = release(version)
    for operator, wanted in re.findall(r"(===?|!=|~=|<=|>=|<|>)\s*([\w.*+!-]+)", specifier):
        bound = release(wanted.removesuffix(".*"))
        prefix = wanted.removesuffix(".*").split(".")  # "5.0.*" is every 5.0, and no other 5
        padded = (*installed, *(0 for _ in prefix))[: len(prefix)]
        same = (
            padded == tuple(map(int, prefix))
            if wanted.endswith(".*") and all(map(str.isdigit, prefix))
            else installed == bound
        )
        at_least = installed >= bound
        if not bound:
            continue
        is_met = {
            "==": same,
            "===": same,
            "!=": not same,
            "<": installed < bound,
            "<=": installed <= bound,
            ">": installed > bound,
            ">=": at_least,
            "~=": at_least and installed[: max(wanted.count("."), 1)] == bound[: max(wanted.count("."), 1)],
        }[operator]
        if not is_met:
            return False
    return True


def release(version: str) -> tuple[int, ...]:
    """The release numbers of a version, for comparison: "2.8.0+cpu" is (2, 8, 0)."""
    leading = re.match(r"[\d.]*", version.strip())
    numbers = [int(part) for part in (leading[0] if leading else "").split(".") if part]
    while numbers and numbers[-1] == 0:  # 2.8 and 2.8.0 are the same release
        numbers.pop()
    return tuple(numbers)
