"""Looks closely at the processes of a tree that does not move, before anything is ended: one line of evidence for each.

Reads only /proc: who was forked without exec and from how many threads, which of the libraries known for trouble are
loaded, in which library a waiting thread stands, and who owns the native mutex it waits for. A mutex whose owner is no
thread of the process was held by another thread when the process was forked; nobody will ever release it.
"""

import os
import re
import struct
from collections.abc import Iterator
from pathlib import Path

from holdfast.core.cgroups import frozen_group
from holdfast.core.text import plural
from holdfast.supervisor.processes import ProcessSample, ThreadSample, TreeSample, sample_tree
from holdfast.supervisor.syscalls import call_name
from holdfast.supervisor.waits import describe_waits

_MOST_PROCESSES = 64
_KNOWN_LIBRARIES = re.compile(r"(libgomp|libiomp5|libomp|tokenizers|libcuda|libnccl|cv2|faiss|libtorch_cpu)\b")
_FUTEX_WAIT, _FUTEX_COMMANDS = 0, 0x7F
_LOCKED_WITH_WAITERS = 2
_MUTEX = struct.Struct("=iIiIi")  # lock, count, owner, users, kind: glibc's pthread_mutex_t
_MOST_KIND = 0x1FF


def look_closely(root_pid: int) -> list[str]:
    """Describe every process of a tree that stands still; nothing where the system has no /proc."""
    if not Path("/proc/self/maps").exists():
        return []
    tree = describe_waits(sample_tree(root_pid))
    return [line for process in tree.processes[:_MOST_PROCESSES] for line in _lines(process, tree)]


def _lines(process: ProcessSample, tree: TreeSample) -> Iterator[str]:
    who = f"pid {process.pid} {process.command}"
    parent = next((other for other in tree.processes if other.pid == process.parent_pid), None)
    maps = _Maps(process.pid)
    main = process.threads[0] if process.threads else None
    told = [plural(len(process.threads), "thread")]
    if main:
        wait = tree.waits.get(main.tid)
        told.append((wait.words if wait else "not seen") + _in_call(main, maps))
    if parent and was_forked(process.pid, parent.pid):
        told.append(f"forked without exec from pid {parent.pid}, which has {plural(len(parent.threads), 'thread')}")
    if libraries := maps.known():
        told.append(f"{' '.join(libraries)} in maps")
    if process.tracer_pid:
        told.append(f"held by the debugger with pid {process.tracer_pid}")
    if group := frozen_group(process.pid):
        told.append(f"frozen by cgroup {group}")
    yield f"{who}: {', '.join(told)}"
    yield from _mutex_lines(who, process, parent)


def was_forked(pid: int, parent_pid: int) -> bool:
    """True when a process is a copy of its parent that never became another program: exec moves the stack."""
    own, its = _start_stack(pid), _start_stack(parent_pid)
    return own is not None and own != 0 and own == its


def read_mutex_owner(pid: int, thread: ThreadSample) -> int | None:
    """The thread that owns the native mutex a thread waits for; None when it waits for something else."""
    call = thread.syscall
    if call is None or call_name(call[0]) != "futex" or call[2] & _FUTEX_COMMANDS != _FUTEX_WAIT:
        return None
    address, expected = call[1], call[3]
    try:
        memory = os.open(f"/proc/{pid}/mem", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        lock, _, owner, _, kind = _MUTEX.unpack(os.pread(memory, _MUTEX.size, address))
    except (OSError, OverflowError, struct.error):
        return None
    finally:
        os.close(memory)
    # Semaphores (Python's locks), condition variables and OpenMP barriers are futexes too and have no owner.
    is_mutex = lock == expected == _LOCKED_WITH_WAITERS and 1 < owner < 1 << 22 and 0 <= kind <= _MOST_KIND
    return owner if is_mutex else None


def _mutex_lines(who: str, process: ProcessSample, parent: ProcessSample | None) -> Iterator[str]:
    own = {thread.tid for thread in process.threads}
    owners = {thread.tid: owner for thread in process.threads if (owner := read_mutex_owner(process.pid, thread))}
    for tid, owner in owners.items():
        if owner not in own:
            of_parent = bool(parent) and owner in {thread.tid for thread in (parent.threads if parent else ())}
            whose = f"a thread of its parent pid {process.parent_pid}" if of_parent else "no thread of it"
            yield f"{who}: thread {tid} waits for a mutex owned by thread {owner}, {whose}: orphaned by fork"
        elif owner == tid:
            yield f"{who}: thread {tid} waits for a mutex it holds itself: deadlock"
        elif owners.get(owner) == tid and tid < owner:
            yield f"{who}: threads {tid} and {owner} each wait for a mutex that the other holds: deadlock"


def _in_call(thread: ThreadSample, maps: "_Maps") -> str:
    """The call a thread waits in, and the library that made it: OpenMP's own runtime calls the kernel directly."""
    if thread.syscall is None or thread.syscall[0] < 0:
        return ""
    name = call_name(thread.syscall[0])
    if name == "futex":
        name += " without timeout" if not thread.syscall[4] else " with timeout"
    library = maps.library_at(thread.syscall[8])
    return f" in {name}" + (f" called by {library}" if library else "")


def _start_stack(pid: int) -> int | None:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
        return int(fields[25])
    except (OSError, IndexError, ValueError):
        return None


class _Maps:
    """The libraries in a process's memory."""

    def __init__(self, pid: int):
        self._ranges: list[tuple[int, int, str]] = []
        try:
            lines = Path(f"/proc/{pid}/maps").read_text(errors="replace").splitlines()
        except OSError:
            return
        for line in lines:
            fields = line.split(None, 5)
            if len(fields) == 6 and fields[5].startswith("/"):
                begin, end = (int(word, 16) for word in fields[0].split("-"))
                self._ranges.append((begin, end, fields[5].rpartition("/")[2]))

    def known(self) -> list[str]:
        """Those that matter for a diagnosis, each once."""
        found = (match[1] for _, _, name in self._ranges if (match := _KNOWN_LIBRARIES.search(name)))
        return list(dict.fromkeys(found))

    def library_at(self, address: int) -> str:
        """The file that holds an address; empty when none does."""
        return next((name for begin, end, name in self._ranges if begin <= address < end), "")
