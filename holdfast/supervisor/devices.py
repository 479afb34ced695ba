"""Asks whether a GPU or a disk is at work for processes that look quiet because they wait for it.

A GPU is asked only for trees that have its driver open, and by a process of its own: a driver that hangs must not hang
us. A disk is alive while the kernel's unwritten data shrinks; whose it is the kernel does not say, so what waits for
the answer of a file server is not judged by it.
"""

import os
import re
import shutil
import subprocess
from pathlib import Path

from holdfast.supervisor.processes import TreeSample

_BUSY_PERCENT = 5
_ANSWER_SECONDS = 3.0
_ASK_AGAIN_SECONDS = 2.0
_DISK_SECONDS = 60.0
_DISK_LONGEST_SECONDS = 3600.0
_DISK_KILOBYTES = 256
# Where the kernel waits for the answer to one request of a FUSE, NFS, CIFS, Ceph or 9p mount.
_SERVERS = re.compile(
    r"\((?:fuse_|request_wait_answer|rpc_wait|nfs4_wait|wait_for_response|cifs_|smb|ceph_|p9_|autofs)"
)


class Gpu:
    """Remembers for a moment what the card said."""

    def __init__(self) -> None:
        self._asked_at = float("-inf")
        self._is_busy = False

    def is_busy(self, tree: TreeSample, now: float) -> bool:
        """True when the tree uses a card, and a card is at work or does not tell."""
        if now - self._asked_at >= _ASK_AGAIN_SECONDS:
            self._asked_at = now
            self._is_busy = uses_gpu(tree) and gpu_is_busy() is not False  # where nobody can say, it may well be
        return self._is_busy


class Disk:
    """Looks whether data that waits to be written is getting less."""

    def __init__(self) -> None:
        self._first_at: float | None = None
        self._alive_at = float("-inf")
        self._unwritten = 0

    def is_alive(self, now: float) -> bool:
        """True while something was written within the last minute; not for ever."""
        unwritten = unwritten_kilobytes()
        if self._first_at is None or now - self._alive_at > 2 * _DISK_SECONDS:
            self._first_at = now
        if self._unwritten - unwritten >= _DISK_KILOBYTES:
            self._alive_at = now
        self._unwritten = unwritten
        return now - self._alive_at < _DISK_SECONDS and now - self._first_at < _DISK_LONGEST_SECONDS


def waits_for_server(words: str) -> bool:
    """True when a wait in the kernel, in words, is for the server of a mount, and no disk of this machine."""
    return bool(_SERVERS.search(words))


def unwritten_kilobytes() -> int:
    """What the kernel still has to write to disks; 0 where it does not say."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) for line in lines if line.startswith(("Dirty:", "Writeback:")))


def uses_gpu(tree: TreeSample) -> bool:
    """True when a process of the tree has an NVIDIA or AMD device open."""
    for process in tree.processes:
        folder = f"/proc/{process.pid}/fd"
        try:
            targets = [os.readlink(f"{folder}/{name}") for name in os.listdir(folder)]  # noqa: PTH115, PTH208
        except OSError:
            continue
        if any(target.startswith(("/dev/nvidia", "/dev/kfd")) for target in targets):
            return True
    return False


def gpu_is_busy() -> bool | None:
    """Whether any card is at work; None when nobody can say."""
    command = shutil.which("nvidia-smi")
    if not command:
        return _amd_is_busy()
    query = [command, "--query-gpu=utilization.gpu", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(query, capture_output=True, timeout=_ANSWER_SECONDS, stdin=subprocess.DEVNULL, text=True)
    except (OSError, subprocess.TimeoutExpired):
        return None
    numbers = [int(word) for word in done.stdout.split() if word.isdigit()]
    return any(number >= _BUSY_PERCENT for number in numbers) if numbers else None


def _amd_is_busy() -> bool | None:
    numbers = []
    for file in Path("/sys/class/drm").glob("card*/device/gpu_busy_percent"):
        try:
            numbers.append(int(file.read_text(encoding="ascii")))
        except (OSError, ValueError):
            continue
    return any(number >= _BUSY_PERCENT for number in numbers) if numbers else None
