"""How many CPUs this process may use, and what they can do."""

import math
import os
import re
import sys
from pathlib import Path

from holdfast.core.facts import Answer
from holdfast.machine.cgroup import cpu_quota
from holdfast.machine.commands import output_of

# What decides which kernels torch takes, or whether a wheel runs at all.
_FLAGS_THAT_MATTER = frozenset(
    {"sse4_2", "avx", "avx2", "fma", "f16c", "avx512f", "avx512_bf16", "avx512_vnni", "avx_vnni"}
    | {"amx_tile", "amx_bf16", "amx_int8", "asimd", "asimdhp", "atomics", "bf16", "i8mm", "sve", "sve2"}
)


def probe_cpu_count() -> Answer[int]:
    """CPUs this process may use; a container often grants fewer than the box has."""
    if hasattr(os, "sched_getaffinity"):
        count, source = len(os.sched_getaffinity(0)), "scheduler affinity"
    else:
        count, source = os.cpu_count() or 1, "os.cpu_count; this system has no affinity call"
    quota = cpu_quota()
    if quota and quota[0] < count:
        return Answer(max(1, math.ceil(quota[0])), f"quota of {quota[0]:g} CPUs in {quota[1]}")
    return Answer(count, source)


def probe_cpu_count_physical() -> Answer[int]:
    """Cores of the whole box; two threads of one core share its arithmetic units."""
    import psutil

    count = psutil.cpu_count(logical=False)
    if not count:
        raise LookupError("the system does not tell cores from threads")
    return Answer(count, "psutil.cpu_count")


def probe_cpu_flags() -> Answer[tuple[str, ...]]:
    """The instruction sets that decide which kernels run."""
    if sys.platform == "linux":
        return Answer(read_flags(Path("/proc/cpuinfo").read_text(errors="replace")), "/proc/cpuinfo")
    if sys.platform == "darwin":
        return Answer(read_mac_flags(output_of("sysctl", "hw.optional")), "sysctl hw.optional")
    return Answer((), "not asked on this system")


def read_flags(cpuinfo: str) -> tuple[str, ...]:
    """Pick the flags that matter from /proc/cpuinfo ("flags" on x86, "Features" on ARM)."""
    found = re.search(r"^(?:flags|Features)\s*:\s*(.*)$", cpuinfo, re.MULTILINE)
    return tuple(sorted(_FLAGS_THAT_MATTER.intersection(found[1].split() if found else ())))


def read_mac_flags(sysctl: str) -> tuple[str, ...]:
    """Pick the flags that matter from `sysctl hw.optional`, which names them differently for Intel and Apple chips."""
    names = re.findall(r"^hw\.optional\.(?:arm\.FEAT_|arm\.)?(\w+): 1$", sysctl, re.MULTILINE)
    renamed = {
        "AdvSIMD": "asimd",
        "neon": "asimd",
        "FP16": "asimdhp",
        "LSE": "atomics",
        "avx2_0": "avx2",
        "avx1_0": "avx",
    }
    return tuple(sorted(_FLAGS_THAT_MATTER.intersection(renamed.get(name, name.lower()) for name in names)))
