"""The facts as `doctor` prints them: one section per line, in order."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import PurePath

from holdfast.core.facts import Disk, MachineFacts
from holdfast.core.text import human_bytes, plural
from holdfast.doctor.show_fact import HARMLESS

_SHOWN_PACKAGES = ("transformers", "accelerate", "peft", "sentence-transformers", "datasets", "numpy")
_SYSTEMS = {"linux": "Linux", "macos": "macOS", "windows": "Windows"}


@dataclass(frozen=True, slots=True)
class Section:
    """One subject: the probes it waits for, which `-v` lists as facts, and its lines."""

    probes: tuple[str, ...]
    sentences: Callable[[MachineFacts], list[str]]


def _system(facts: MachineFacts) -> list[str]:
    name = facts.os_version if facts.os == "linux" else f"{_SYSTEMS.get(facts.os, facts.os)} {facts.os_version}".strip()
    parts = [name, facts.chip, facts.arch if facts.arch not in facts.chip else ""]
    parts += ["under Rosetta"] if facts.is_rosetta else []
    parts += ["in a container"] if facts.in_container else []
    return [", ".join(part for part in parts if part)]


def _python(facts: MachineFacts) -> list[str]:
    return [f"Python {facts.python_version} ({facts.python_build}), {facts.python_path}"]


def _compute(facts: MachineFacts) -> list[str]:
    parts = [plural(facts.cpu_count, "CPU")] if facts.cpu_count else []
    if facts.memory_bytes:
        free = f" ({human_bytes(facts.memory_free_bytes)} free)" if facts.memory_free_bytes is not None else ""
        of = ""
        if facts.memory_physical_bytes and facts.memory_bytes < facts.memory_physical_bytes:
            of = f" of the machine's {human_bytes(facts.memory_physical_bytes)}"
        parts.append(f"{human_bytes(facts.memory_bytes)} memory{of}{free}")
    if facts.shm_bytes is not None:
        parts.append(f"{human_bytes(facts.shm_bytes)} shared memory")
    if facts.open_file_limit is not None:
        parts.append(f"at most {facts.open_file_limit:,} open files")
    return [", ".join(parts)] if parts else []


def _disks(facts: MachineFacts) -> list[str]:
    """One clause per file system, for all folders on it."""
    groups: dict[tuple[int, str], list[Disk]] = {}
    for disk in filter(lambda disk: disk.is_writable, facts.disks):
        groups.setdefault((disk.total_bytes, disk.filesystem), []).append(disk)
    clauses = []
    for disks in groups.values():
        roles = " and ".join(", ".join(disk.role for disk in disks).rsplit(", ", 1))
        kind = f" ({disks[0].filesystem})" if disks[0].filesystem else ""
        clauses.append(f"{human_bytes(disks[0].free_bytes)} free for {roles}{kind}")
    return ["disk: " + ", ".join(clauses)] if clauses else []


def _packages(facts: MachineFacts) -> list[str]:
    named = [f"{name} {facts.distributions[name]}" for name in _SHOWN_PACKAGES if name in facts.distributions]
    count = f"{plural(len(facts.distributions), 'distribution')} installed"
    return [_torch(facts), count + (f", among them {', '.join(named)}" if named else "")]


def _torch(facts: MachineFacts) -> str:
    if facts.torch is None:
        return "torch is not installed in this Python, so no device is tested"
    if facts.torch.cuda:
        built = f"CUDA {facts.torch.cuda}"
    elif facts.torch.rocm:
        built = f"ROCm {facts.torch.rocm}"
    else:
        built = "the CPU and the Apple GPU" if facts.torch.mps else "the CPU only"
    return f"torch {facts.torch.version}, built for {built}"


def _gpus(facts: MachineFacts) -> list[str]:
    lines = ["no GPU was found"] if "gpus" in facts.sources and not facts.gpus else []
    hidden = any(item.name == "CUDA_VISIBLE_DEVICES" and item.value.strip() in ("", "-1") for item in facts.variables)
    for gpu in facts.gpus:
        size = f", {human_bytes(gpu.memory_bytes)}" if gpu.memory_bytes else ""
        shared = " shared with the CPU" if gpu.kind == "mps" else ""
        free = f" ({human_bytes(gpu.free_bytes)} free)" if gpu.free_bytes is not None else ""
        driver = f", driver {facts.driver_version}" if gpu.kind == "cuda" and facts.driver_version else ""
        newest = f" for CUDA up to {facts.driver_cuda}" if driver and facts.driver_cuda else ""
        unseen = ", hidden from torch by CUDA_VISIBLE_DEVICES" if hidden and gpu.kind == "cuda" else ""
        lines.append(f"{gpu.name}{size}{shared}{free}{driver}{newest}{unseen}")
    return lines


def _native(facts: MachineFacts) -> list[str]:
    if "conflicts" not in facts.sources:
        return []
    copies = f"{plural(len(facts.openmp_runtimes), 'OpenMP runtime')} among the installed packages"
    bad = [pair for pair in facts.conflicts if pair.outcome not in (*HARMLESS, "tolerated")]
    tolerated = [pair for pair in facts.conflicts if pair.outcome == "tolerated"]
    if bad:
        return []  # reported as findings
    return [copies + (", two of them together in some programs, which works" if tolerated else ", no clash")]


def _trials(facts: MachineFacts) -> list[str]:
    if facts.torch and not facts.trials and "trials" in facts.sources:
        return [f"no device was tested: {facts.sources['trials']}"]
    well = [trial for trial in facts.trials if trial.outcome == "agrees"]
    return [f"{trial.device} trains: {trial.detail} ({trial.seconds:g} s with loading torch)" for trial in well]


def _places(facts: MachineFacts) -> list[str]:
    if not facts.models:
        return []
    size = human_bytes(sum(model.bytes for model in facts.models))
    return [f"{plural(len(facts.models), 'model')} in the hub's cache, {size}"]


def _folder(facts: MachineFacts) -> list[str]:
    system = f"{_SYSTEMS.get(facts.os, facts.os)} {facts.arch}".strip() or "no native files"
    where = PurePath(facts.sources.get("distributions", ""))
    return [f"{plural(len(facts.distributions), 'distribution')} for {system} in {where}"]


SECTIONS = (
    Section(("os", "os_version", "arch", "chip", "is_rosetta", "in_container"), _system),
    Section(("python_version", "python_build", "python_path", "start_method"), _python),
    Section(
        (
            "cpu_count",
            "cpu_count_physical",
            "cpu_flags",
            "memory_bytes",
            "memory_physical_bytes",
            "memory_free_bytes",
            "swap_bytes",
            "shm_bytes",
            "shm_free_bytes",
            "open_file_limit",
        ),
        _compute,
    ),
    Section(("disks",), _disks),
    Section(("torch", "distributions"), _packages),
    Section(("models", "variables", "power"), _places),
    Section(("gpus", "driver_version", "driver_cuda", "gpu_processes"), _gpus),
    Section(("native",), _native),  # `-v` lists native libraries after all facts
    Section(("trials",), _trials),
)
FOLDER_SECTIONS = (
    Section(("distributions",), _folder),
    Section(("torch",), lambda facts: [_torch(facts)] if facts.torch else []),
    Section(("native",), _native),  # `-v` lists native libraries after all facts
)
