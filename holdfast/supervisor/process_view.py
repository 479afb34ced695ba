"""Looks closely at the processes of a tree that does not move, before anything is ended.

Reads only /proc: which processes were forked without exec and from how many threads, which of the libraries known for
trouble are loaded, which library a waiting thread is in, and who owns the native mutex it waits for. A mutex whose
owner is not a thread of the process was held by another thread at the time of the fork; nobody will ever release it.
"""

import os
import re
import struct
from collections.abc import Iterator
from pathlib import Path

from msgspec.structs import replace

from holdfast.core.cgroups import frozen_group
from holdfast.core.observations import MutexWait, Observation, ProcessView
from holdfast.supervisor.processes import ProcessSample, ThreadSample, TreeSample, sample_tree, this_system
from holdfast.supervisor.syscalls import call_name
from holdfast.supervisor.waits import read_waits

_MOST_PROCESSES = 64
_KNOWN_LIBRARIES = re.compile(r"(libgomp|libiomp5|libomp|tokenizers|libcuda|libnccl|cv2|faiss|libtorch_cpu)\b")
_FUTEX_WAIT, _FUTEX_COMMANDS = 0, 0x7F
_LOCKED_WITH_WAITERS = 2
_MUTEX = struct.Struct("=iIiIi")  # lock, count, owner, users, kind: glibc's pthread_mutex_t
_MOST_KIND = 0x1FF


def view_processes(root_pid: int) -> list[Observation]:
    """Every process of a tree that does not move, and the mutexes they wait for; empty on systems without /proc."""
    if this_system().blindness is not None:
        return []
    tree = read_waits(sample_tree(root_pid))
    return [seen for process in tree.processes[:_MOST_PROCESSES] for seen in _view(process, tree)]


def _view(process: ProcessSample, tree: TreeSample) -> Iterator[Observation]:
    parent = next((other for other in tree.processes if other.pid == process.parent_pid), None)
    is_fork = parent is not None and was_forked(process.pid, parent.pid)
    maps, main = _Maps(process.pid), process.threads[0] if process.threads else None
    call = call_name(main.syscall[0]) if main and main.syscall and main.syscall[0] >= 0 else ""
    yield ProcessView(
        pid=process.pid,
        command=process.command,
        threads=len(process.threads),
        wait=tree.waits.get(main.tid) if main else None,
        system_call=call,
        has_timeout=not (call == "futex" and main and main.syscall and not main.syscall[4]),
        # OpenMP's own runtime calls the kernel directly, so the library that made the call names it.
        caller=maps.library_at(main.syscall[8]) if call and main and main.syscall else "",
        forked_from=parent.pid if parent and is_fork else None,
        parent_threads=len(parent.threads) if parent and is_fork else 0,
        libraries=tuple(maps.known()),
        tracer_pid=process.tracer_pid,
        frozen_cgroup=str(frozen_group(process.pid) or ""),
    )
    yield from _mutex_waits(process, parent)


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


def _mutex_waits(process: ProcessSample, parent: ProcessSample | None) -> Iterator[MutexWait]:
    own = {thread.tid for thread in process.threads}
    of_parent = {thread.tid for thread in parent.threads} if parent else set()
    owners = {thread.tid: owner for thread in process.threads if (owner := read_mutex_owner(process.pid, thread))}
    for tid, owner in owners.items():
        wait = MutexWait(pid=process.pid, command=process.command, tid=tid, owner_tid=owner, how="orphaned_by_fork")
        if owner not in own:
            yield replace(wait, parent_pid=process.parent_pid if owner in of_parent else None)
        elif owner == tid:
            yield replace(wait, how="own")
        elif owners.get(owner) == tid and tid < owner:
            yield replace(wait, how="mutual")


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
