"""Another process holds the GPU's memory.

What you see: "CUDA out of memory" although this run uses almost none, or before it has even started.
Why: an earlier run that was killed, an open notebook kernel, or somebody else's job still holds memory on the card.
What we do: compare this process's memory with what is used on the card, use another card if there is one, and otherwise
show which process holds the memory.
"""

import re

from holdfast.core.evidence import Evidence, Passage
from holdfast.core.facts import MachineFacts
from holdfast.core.plan import Plan, Remedy
from holdfast.core.text import human_bytes
from holdfast.hazards import Hazard, Invited, judged, proves, seen, suggests

_GIB = 2**30
_CONTEXT_BYTES = (
    1.2 * _GIB
)  # what a CUDA context, its libraries and a desktop take; measured contexts are 0.3 to 0.9 GiB
_UNITS = {"bytes": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
_SIZE = r"(\d+(?:\.\d+)?)\s+(bytes|[KMG]iB)"


def invited_by(facts: MachineFacts, plan: Plan) -> Invited | None:
    """Say why this machine and plan invite the hazard; None when they do not."""
    if plan.device not in ("auto", "cuda"):
        return None
    holders = [process for process in facts.gpu_processes if (process.memory_bytes or 0) > _GIB]
    if holders:
        who = ", ".join(
            f"{process.name} (pid {process.pid}, {process.user}) holds {human_bytes(process.memory_bytes or 0)}"
            for process in holders
        )
        return Invited(f"GPU memory is in use: {who}")
    for gpu in facts.gpus:
        if gpu.kind == "cuda" and gpu.memory_bytes and gpu.free_bytes is not None:
            held = gpu.memory_bytes - gpu.free_bytes
            if held > gpu.memory_bytes / 4:
                return Invited(f"{human_bytes(held)} of {gpu.name}'s memory is in use, but by no visible process")
    return None


def _others_hold_it(evidence: Evidence) -> Passage | None:
    """The first out-of-memory message whose numbers show that other processes hold most of the memory."""
    for match, passage in evidence.log.search(r"[Tt]ried to allocate\s[\s\S]{0,700}"):
        if _missing_is_not_ours(match[0]):
            return passage
    return None


def _missing_is_not_ours(message: str) -> bool:
    wanted = _bytes(rf"allocate\s+{_SIZE}", message)
    total = _bytes(rf"{_SIZE}\s+total\s+capaci?ty|total\s+capaci?ty\s+of\s+{_SIZE}", message)
    free = _bytes(rf"{_SIZE}\s+(?:is\s+)?free", message)
    held = _held_by_torch(message)
    if wanted is None or total is None or held is None:
        return False
    if free is None:  # the message was cut; yet a request that would fit an empty card did not fit this one
        return wanted + 2 * held + _CONTEXT_BYTES < total
    others = total - free - held
    return wanted > free and wanted + held <= total and others > max(held, _CONTEXT_BYTES)


def _held_by_torch(message: str) -> float | None:
    allocated = _bytes(rf"{_SIZE}\s+(?:already\s+allocated|is\s+allocated\s+by\s+PyTorch)", message)
    if allocated is None:
        return _bytes(rf"this\s+process\s+has\s+{_SIZE}\s+memory\s+in\s+use", message)
    reserved = _bytes(rf"{_SIZE}\s+reserved\s+in\s+total", message)
    if reserved is not None:
        return max(reserved, allocated)
    # "cached" (torch 1.3 and earlier) and "reserved but unallocated" (2.1 and later) are in addition to "allocated".
    return allocated + (_bytes(rf"{_SIZE}\s+(?:cached|is\s+reserved\s+by)", message) or 0)


def _bytes(pattern: str, message: str) -> float | None:
    found = re.search(pattern, message)
    if found is None:
        return None
    number, unit = [group for group in found.groups() if group][:2]
    return float(number) * _UNITS[unit]


def _card_full_with_nobody_on_it(evidence: Evidence) -> Passage | None:
    """An nvidia-smi or gpustat table with memory in use but no process."""
    nobody = r"No running processes found|Usage +\|\Z|Unknown Error +\d+MiB|\[Not Found\]|\|=+\|\n\+-+\+$|MB \| *(?:\(null\))?$"
    if not seen("log", nobody).find(evidence):
        return None
    for match, passage in evidence.log.search(r"\b(\d{1,9})(?:MiB)? */ *(\d{1,9}) ?Mi?B"):
        used, total = int(match[1]), int(match[2])
        if 4 * used > total > 1000:
            return seen("error", r"out of memory").find(evidence) or passage
    return None


def _held_by_a_dead_process(evidence: Evidence) -> Passage | None:
    """A stopped or dead process, by a process table, that nvidia-smi lists with memory."""
    idle = {row.pid for row in evidence.processes if row.state[0] in "TtZ"}
    for match, passage in evidence.log.search(r"^\|\s+\d+\s+(?:\S+\s+\S+\s+)?(\d+)\s+[CG+]+\s[^\n]*\d+MiB"):
        if int(match[1]) in idle:
            return passage
    return None


HAZARD = Hazard(
    slug="zombie-gpu-memory",
    title="another process holds the GPU's memory",
    kind="error",
    invited_by=invited_by,
    signs=(
        judged("proves", _others_hold_it),
        judged("suggests", _card_full_with_nobody_on_it),
        judged("suggests", _held_by_a_dead_process),
        # Even the first driver call fails: there is no room for a context.
        suggests(
            "error",
            r"(?:CUDA|cuda)(?: runtime)? error(?: \(2\))?\s?: out of memory",
            also=(
                seen(
                    "frame",
                    r"_lazy_init|_cuda_init|set_device|manual_seed|_lazy_call|set_rng_state|get_rng_state|_check_driver|init_process_group",
                ),
            ),
        ),
        suggests("log", r"\d +C\+?G? +Unknown Error +\d+MiB"),
        proves(
            "log", r"Free memory on device [\w:() ]*\([\d.]+/[\d.]+ GiB\) on startup is less than desired GPU memory"
        ),
        suggests(
            "log",
            r"all CUDA-capable devices are busy or unavailable|cudaErrorDevicesUnavailable|CUDA_ERROR_DEVICE_UNAVAILABLE",
        ),
    ),
    remedies=(
        Remedy(
            "list the processes that hold the memory, including those that nvidia-smi does not show, and end yours",
            command="nvidia-smi; fuser -v /dev/nvidia*; kill PID",
            cost="ends that process",
        ),
        Remedy("use another card", command="CUDA_VISIBLE_DEVICES=1 python train.py", cost="needs a second card"),
        Remedy(
            "halve the micro-batch and double the accumulation",
            change={"micro_batch": "halve"},
            cost="a little slower",
        ),
        Remedy("train on the CPU", change={"device": "cpu"}, cost="much slower"),
    ),
    sources=(
        "pytorch/pytorch#40863",
        "pytorch/pytorch#4293",
        "rwth-i6/returnn#1649",
        "apache/mxnet#17837",
        "pytorch/pytorch#99699",
    ),
    over=("cuda-oom", "process-stopped"),
    matches=(
        "|    0   N/A  N/A      4211      C   python                          10241MiB |\njo          4211  0.0 12.1 9123456 812345 pts/3  Tl   Feb02  14:07 python train.py",
        "CUDA out of memory. Tried to allocate 1.69 GiB (GPU 0; 14.56 GiB total capacity; 649.97 MiB already allocated; 1.31 GiB free; 1.01 GiB reserved in total by PyTorch)",
        "RuntimeError: CUDA out of memory. Tried to allocate 216.00 MiB (GPU 0; 7.92 GiB total capacity; 69.17 MiB already\nallocated; 24.56 MiB free; 86.00 MiB reserved in total by PyTorch)",
        "OutOfMemoryError: CUDA out of memory. Tried to allocate 290.00 MiB. GPU 0 has a total capacity of 93.00 GiB of which 134.94 MiB is free. Process 118636 has 71.62 GiB memory in use. "
        "Including non-PyTorch memory, this process has 21.24 GiB memory in use. Of the allocated memory 19.85 GiB is allocated by PyTorch, and 731.17 MiB is reserved by PyTorch but unallocated.",
        "RuntimeError: CUDA out of memory. Tried to allocate 20.00 MiB (GPU 0; 10.92 GiB total capacity; 12.10 MiB already allocated; 9.50 MiB free; 1.90 MiB cached)",
        'Traceback (most recent call last):\n  File "train.py", line 9, in <module>\n    torch.cuda.set_device(0)\n  File "/site-packages/torch/cuda/__init__.py", line 311, in set_device\n'
        "    torch._C._cuda_setDevice(device)\nRuntimeError: CUDA error: out of memory",
        "| N/A   36C    P0    41W / 300W |  12799MiB / 16280MiB |      0%      Default |\n|  No running processes found                                                 |",
        "RuntimeError: CUDA error: all CUDA-capable devices are busy or unavailable",
        "|    0   N/A  N/A     91      C   Unknown Error                   10241MiB |",
        "ValueError: Free memory on device (2.1/23.6 GiB) on startup is less than desired GPU memory utilization (0.9, 21.3 GiB).",
    ),
    near_misses=(
        "RuntimeError: CUDA out of memory. Tried to allocate 102.00 MiB (GPU 0; 15.78 GiB total capacity; 14.54 GiB already allocated; 48.44 MiB free; 14.67 GiB reserved in total by PyTorch)",
        # No other process: the request itself is larger than the card.
        "RuntimeError: CUDA out of memory. Tried to allocate 25.49 GiB (GPU 0; 23.70 GiB total capacity; 57.77 MiB already allocated; 22.24 GiB free; 84.00 MiB reserved in total by PyTorch)",
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 94.00 MiB. GPU 0 has a total capacity of 14.75 GiB of which 57.06 MiB is free. "
        "Process 3746 has 14.69 GiB memory in use. Of the allocated memory 14.20 GiB is allocated by PyTorch, and 371.50 MiB is reserved by PyTorch but unallocated.",
        "RuntimeError: CUDA out of memory. Tried to allocate 10.73 GiB (GPU 0; 8.00 GiB total capacity; 17.20 GiB already allocated; 0 bytes free; 19.15 GiB reserved in total by PyTorch)",
    ),
)
