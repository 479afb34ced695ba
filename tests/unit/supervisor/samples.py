"""Samples for tests: recorded from real programs, or made up."""

import json
from pathlib import Path

import msgspec

from holdfast.core.observations import Wait, WaitTarget
from holdfast.supervisor.processes import ProcessSample, ThreadSample, TreeSample

WINDOWS = Path(__file__).parent / "windows"
RECORDED = sorted(file.stem for file in WINDOWS.glob("*.json"))


def recorded(name: str) -> tuple[tuple[TreeSample, TreeSample], dict]:
    """A recorded window of the lab's script of that name, and what else was written down."""
    told = json.loads((WINDOWS / f"{name}.json").read_text(encoding="utf-8"))
    return (_tree(told["first"]), _tree(told["last"])), told


def thread(tid: int, state: str = "S", **fields: object) -> ThreadSample:
    return ThreadSample(tid=tid, name=str(fields.pop("name", "python")), state=state, **fields)


def process(pid: int, *threads: ThreadSample, parent: int = 1, **fields: object) -> ProcessSample:
    known = {"start_ticks": 100, "command": "python", "cpu_seconds": 1.0, **fields}
    return ProcessSample(pid=pid, parent_pid=parent, threads=threads or (thread(pid),), **known)


def window(*processes: ProcessSample, seconds: float = 4.0, **waits: Wait) -> tuple[TreeSample, TreeSample]:
    """Two equal samples: nothing has moved between them."""
    by_tid = {int(name[1:]): wait for name, wait in waits.items()}
    return (
        TreeSample(at_seconds=0.0, processes=processes),
        TreeSample(at_seconds=seconds, processes=processes, waits=by_tid),
    )


def lock(pid: int) -> Wait:
    return Wait(kind="lock", target=WaitTarget.LOCK, wakers=frozenset({pid}))


def _tree(told: dict) -> TreeSample:
    processes = tuple(
        ProcessSample(**{**one, "threads": tuple(ThreadSample(**_with_call(item)) for item in one["threads"])})
        for one in told["processes"]
    )
    waits = {int(tid): msgspec.convert(wait, Wait) for tid, wait in told["waits"].items()}
    return TreeSample(at_seconds=told["at_seconds"], processes=processes, waits=waits)


def _with_call(told: dict) -> dict:
    return {**told, "syscall": tuple(told["syscall"]) if told["syscall"] else None}
