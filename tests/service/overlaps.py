"""Detects two engines of one job at work at the same time, by watching the living processes."""

import os
import threading
import time
from collections import defaultdict
from pathlib import Path

import psutil

from holdfast.supervisor.members import attempt_of, find_member

_LOOK_SECONDS = 0.25


def engines_at_work(runs: Path) -> dict[int, dict[int, str]]:
    """The living engines of each job below this folder, by pid, with their attempts; helpers of one are not counted."""
    found: dict[int, dict[int, str]] = defaultdict(dict)
    parents: dict[int, int] = {}
    for pid in psutil.pids():
        attempt = attempt_of(pid)  # empty for a spare that waits and for what is dead but not reaped
        if attempt.startswith(f"{runs}{os.sep}") and (member := find_member(pid)) and not member.is_gone:
            inside = Path(attempt).relative_to(runs)
            found[int(inside.parts[0])][pid] = str(inside)
            parents[pid] = member.parent_pid
    return {job: {pid: name for pid, name in one.items() if parents[pid] not in one} for job, one in found.items()}


class OverlapWatch:
    """Remembers each job that two engines worked on at once, in words."""

    def __init__(self, runs: Path):
        self._runs, self._is_over = runs.resolve(), threading.Event()
        self.seen: dict[int, str] = {}
        self.attempts: set[str] = set()  # that it met at work: one that meets none is blind
        self.looks, self.longest_gap_seconds = 0, 0.0
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def look(self) -> None:
        """Look once. Two looks must agree: a process that has just been killed takes a moment to go."""
        for job, engines in engines_at_work(self._runs).items():
            self.attempts.update(engines.values())
            if len(engines) > 1 and job not in self.seen:
                time.sleep(_LOOK_SECONDS / 5)
                again = engines_at_work(self._runs).get(job, {})
                both = {pid: name for pid, name in engines.items() if again.get(pid) == name}
                if len(both) > 1:
                    words = ", ".join(f"pid {pid} ({name})" for pid, name in both.items())
                    self.seen[job] = f"{len(both)} engines at once: {words}"
        self.looks += 1

    def __enter__(self) -> "OverlapWatch":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join(10)

    def _watch(self) -> None:
        looked_at = time.monotonic()
        while not self._is_over.wait(_LOOK_SECONDS):
            self.look()
            now = time.monotonic()
            self.longest_gap_seconds, looked_at = max(self.longest_gap_seconds, now - looked_at), now
