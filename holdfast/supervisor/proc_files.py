"""Reads from /proc which files, memory and locks a process has.

Names only: files of a process are never opened or inspected here. Their disk may be the one that does not respond, and
then the supervisor would hang too.
"""

import os
import re
import stat
import struct
from functools import lru_cache
from pathlib import Path

_PYTHON_FILE = re.compile(r"/(?:lib)?python3[^/]*$")
_MOST_FILES = 1024


def target_of(pid: int, file: int) -> str:
    """What one of a process's files is: a path, "socket:[123]", "pipe:[123]"; empty when it is gone."""
    try:
        return os.readlink(b"/proc/%d/fd/%d" % (pid, file)).decode(errors="replace")  # noqa: PTH115 - hundreds a look
    except OSError:
        return ""


def open_files(pid: int) -> list[tuple[str, bool]]:
    """All files of a process, and whether it may write to them."""
    found = []
    folder = f"/proc/{pid}/fd/"
    try:
        names = os.listdir(folder)  # noqa: PTH208  (names alone: one call, no paths made)
    except OSError:
        return []
    for name in names:
        try:
            target = os.readlink(folder + name)  # noqa: PTH115  (a socket's name is no path)
            # The link itself is asked, which is /proc's, and not what it points to.
            found.append((target, bool(os.lstat(folder + name).st_mode & stat.S_IWUSR)))
        except OSError:
            continue
    return found


def absolute_path(pid: int, path: str) -> str:
    """A path as the process means it."""
    try:
        return str(Path(f"/proc/{pid}/cwd").readlink() / path)
    except OSError:
        return path


def text_at(pid: int, address: int) -> str:
    """A string in a process's memory; empty when it may not be read."""
    page = 4096 - address % 4096  # it may end just before memory that is not there
    return (_memory(pid, address, 4096) or _memory(pid, address, page)).partition(b"\0")[0].decode(errors="replace")


def polled_files(pid: int, address: int, count: int) -> list[int]:
    """The files in the list that was given to poll()."""
    raw = _memory(pid, address, 8 * min(count, _MOST_FILES))
    return [file for file, _, _ in struct.iter_unpack("=ihh", raw[: len(raw) // 8 * 8]) if file >= 0]


def selected_files(pid: int, arguments: tuple[int, ...]) -> list[int]:
    """The files in the three sets that were given to select()."""
    count = min(arguments[0], _MOST_FILES)
    found: set[int] = set()
    for address in arguments[1:4]:
        bits = int.from_bytes(_memory(pid, address, (count + 63) // 64 * 8), "little") if address else 0
        found |= {file for file in range(count) if bits >> file & 1}
    return sorted(found)


def watched_files(pid: int, epoll: int) -> list[int]:
    """The files that an epoll object watches."""
    return [int(line.split()[1]) for line in _about_file(pid, epoll) if line.startswith("tfd:")]


def process_of_pidfd(pid: int, file: int) -> frozenset[int]:
    """The process of a pidfd; empty if it has ended."""
    numbers = [int(line.split()[1]) for line in _about_file(pid, file) if line.startswith("Pid:")]
    return frozenset(number for number in numbers if number > 0)


def lock_holders(pid: int, file: int) -> frozenset[int]:
    """The processes that hold a lock on the file that this one has open."""
    inode = next((line.split()[1] for line in _about_file(pid, file) if line.startswith("ino:")), None)
    try:
        lines = Path("/proc/locks").read_text(encoding="ascii").splitlines()
    except OSError:
        return frozenset()
    rows = (line.split() for line in lines if "->" not in line)
    return frozenset(int(row[4]) for row in rows if row[5].rpartition(":")[2] == inode and int(row[4]) > 0)


@lru_cache(maxsize=64)
def interpreter_data(pid: int, start_ticks: int) -> tuple[tuple[int, int], ...]:
    """Where a Python process keeps the interpreter's own data, the interpreter lock among them."""
    found: list[tuple[int, int]] = []
    end_of_python = 0
    try:
        lines = Path(f"/proc/{pid}/maps").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ()
    for line in lines:
        words = line.split(maxsplit=5)
        begin, end = (int(word, 16) for word in words[0].split("-"))
        is_python = len(words) > 5 and _PYTHON_FILE.search(words[5]) is not None
        # What is zero at the start has no file behind it, and follows what has.
        if words[1].startswith("rw") and (is_python or (len(words) < 6 and begin == end_of_python)):
            found.append((begin, end))
        if is_python or begin == end_of_python:
            end_of_python = end
    return tuple(found)


def _about_file(pid: int, file: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/fdinfo/{file}").read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return []


def _memory(pid: int, address: int, count: int) -> bytes:
    try:
        file = os.open(f"/proc/{pid}/mem", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        return os.pread(file, count, address)
    except (OSError, OverflowError):
        return b""
    finally:
        os.close(file)
