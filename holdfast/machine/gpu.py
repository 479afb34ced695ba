"""Probes of GPUs, as the system and the driver list them, and of processes that use them. `trials.py` tests them.

The sources are nvidia-smi, Apple's system_profiler, and the kernel's device tree for AMD. A missing driver is an
answer, not a failure.
"""

import json
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path

from holdfast.core.facts import Answer, Gpu, GpuProcess, release
from holdfast.machine.commands import output_of
from holdfast.machine.system import apple_generation

_MIB = 1 << 20
_NVIDIA_LIMIT_SECONDS = 15.0  # without persistence mode, the first query wakes every GPU
_KFD_NODES = Path("/sys/class/kfd/kfd/topology/nodes")


def has_nvidia_driver(root: Path = Path("/")) -> bool:
    """Whether the NVIDIA kernel driver is loaded, without waking it."""
    return any((root / mark).exists() for mark in ("proc/driver/nvidia/version", "dev/nvidiactl", "dev/dxg"))


def probe_gpus() -> Answer[tuple[Gpu, ...]]:
    """The accelerators of this machine."""
    if sys.platform == "darwin":
        text = output_of("system_profiler", "-json", "SPDisplaysDataType", limit_seconds=15)
        memory = int(output_of("sysctl", "-n", "hw.memsize"))
        return Answer(read_apple_gpus(text, memory), "system_profiler SPDisplaysDataType")
    if has_nvidia_driver():
        fields = "name,memory.total,memory.free,compute_cap"
        return Answer(read_nvidia_gpus(_nvidia(f"--query-gpu={fields}", "--format=csv,noheader,nounits")), "nvidia-smi")
    if _KFD_NODES.is_dir():
        nodes = [(node / "properties").read_text() for node in sorted(_KFD_NODES.iterdir())]
        return Answer(tuple(gpu for node in nodes for gpu in read_amd_node(node)), str(_KFD_NODES))
    return Answer((), "no NVIDIA or AMD driver is loaded")


def read_nvidia_gpus(csv: str) -> tuple[Gpu, ...]:
    """Read name, memory in MiB, free memory and compute capability, one GPU per line."""
    return tuple(
        Gpu(
            name=name,
            kind="cuda",
            memory_bytes=_mib(total),
            free_bytes=_mib(free),
            has_bf16=release(capability) >= (8,),
            capability=capability if re.fullmatch(r"\d+\.\d+", capability) else "",
        )
        for name, total, free, capability in _rows(csv, 4)
    )


def read_apple_gpus(profiler_json: str, memory_bytes: int) -> tuple[Gpu, ...]:
    """Read system_profiler's list. An Apple GPU shares the machine's memory; other GPUs cannot run torch's MPS."""
    gpus: list[Gpu] = []
    for card in json.loads(profiler_json).get("SPDisplaysDataType", []):
        name = card.get("sppci_model") or card.get("_name", "")
        generation = apple_generation(name)
        if generation is not None:
            cores = card.get("sppci_cores")
            name = f"{name} ({cores} cores)" if cores else name
            gpus.append(Gpu(name=name, kind="mps", memory_bytes=memory_bytes, has_bf16=generation >= 3))
    return tuple(gpus)


def read_amd_node(properties: str) -> tuple[Gpu, ...]:
    """Read one node of the kernel's compute tree; a node without SIMD units is a CPU."""
    values = dict(re.findall(r"^(\w+) (\d+)$", properties, re.MULTILINE))
    if int(values.get("simd_count", 0)) == 0:
        return ()
    target = int(values.get("gfx_target_version", 0))
    name = f"gfx{target // 10000}{target // 100 % 100:x}{target % 100:x}"
    return (Gpu(name=f"AMD {name}", kind="rocm", has_bf16=name.startswith(("gfx9", "gfx11", "gfx12"))),)


def probe_driver_version() -> Answer[str]:
    """The version of the NVIDIA driver."""
    if not has_nvidia_driver():
        return Answer("", "no NVIDIA driver is loaded")
    lines = _nvidia("--query-gpu=driver_version", "--format=csv,noheader").split()
    return Answer(lines[0] if lines else "", "nvidia-smi")


def probe_driver_cuda() -> Answer[str]:
    """The newest CUDA version that the NVIDIA driver supports."""
    if not has_nvidia_driver():
        return Answer("", "no NVIDIA driver is loaded")
    return Answer(read_driver_cuda(_nvidia()), "nvidia-smi")


def read_driver_cuda(banner: str) -> str:
    """Find the CUDA version in nvidia-smi's banner; empty when it says N/A."""
    found = re.search(r"CUDA (?:UMD )?Version\s*:\s*(\d+\.\d+)", banner)
    return found[1] if found else ""


def probe_gpu_processes() -> Answer[tuple[GpuProcess, ...]]:
    """Other processes that hold NVIDIA GPU memory."""
    if not has_nvidia_driver():
        return Answer((), "no NVIDIA driver is loaded")
    text = _nvidia("--query-compute-apps=pid,process_name,used_memory", "--format=csv,noheader,nounits")
    return Answer(read_gpu_processes(text, own_pid=os.getpid(), user_of=_user_of), "nvidia-smi")


def read_gpu_processes(csv: str, *, own_pid: int, user_of: Callable[[int], str]) -> tuple[GpuProcess, ...]:
    """Read pid, program and memory in MiB, one process per line; a container may hide all but the pid."""
    return tuple(
        GpuProcess(
            pid=int(pid), name="" if name.startswith("[") else name, user=user_of(int(pid)), memory_bytes=_mib(used)
        )
        for pid, name, used in _rows(csv, 3)
        if pid.isdigit() and int(pid) != own_pid
    )


def _rows(csv: str, count: int) -> list[list[str]]:
    """Split lines from the right, since a program's path may contain a comma."""
    rows = [line.split(", ") for line in csv.splitlines() if line.count(", ") >= count - 1]
    if count == 3:  # pid, name, memory
        return [[row[0].strip(), ", ".join(row[1:-1]).strip(), row[-1].strip()] for row in rows]
    return [[cell.strip() for cell in row[:count]] for row in rows]


def _mib(cell: str) -> int | None:
    return int(cell) * _MIB if cell.isdigit() else None


def _nvidia(*arguments: str) -> str:
    return output_of("nvidia-smi", *arguments, limit_seconds=_NVIDIA_LIMIT_SECONDS)


def _user_of(pid: int) -> str:
    import psutil

    try:
        return str(psutil.Process(pid).username())
    except (psutil.Error, KeyError):
        return ""
