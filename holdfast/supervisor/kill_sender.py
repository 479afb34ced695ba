"""Finds out who sent SIGKILL, as far as the sender leaves a trace: memory guards in the journal, Slurm about its job.

A signal names no sender once its process is gone. A person, a container's runtime or a cloud leave nothing, so mostly
the answer is that it is not known.
"""

import os
import re
import subprocess
import time
from collections.abc import Iterable

from holdfast.core.observations import KillSender

_ANSWER_SECONDS = 2.0
_CLOCK_SECONDS = 30.0  # Slurm looks after its limits about twice a minute
_GUARDS: tuple[KillSender, ...] = ("systemd-oomd", "earlyoom")
_KILLED_GROUP = re.compile(r"Killed (?P<group>/\S*)")  # systemd-oomd; the groups below it are killed too
_KILLED_PROCESS = re.compile(r"(?i)kill.*\bprocess (?P<pid>\d+)")  # earlyoom
_STATE = re.compile(r"\bJobState=(\w+)")
_STATES: dict[str, KillSender] = {
    "TIMEOUT": "slurm_time_limit",
    "PREEMPTED": "slurm_preemption",
    "CANCELLED": "slurm_cancel",
}


def find_sender(pids: Iterable[int], groups: Iterable[str], since: float) -> tuple[KillSender, str]:
    """Who killed one of these processes or control groups since a time of day, and its own words about it."""
    return _guard(set(pids), [group for group in groups if len(group) > 1], since) or _slurm(time.time()) or ("", "")


def _guard(pids: set[int], groups: list[str], since: float) -> tuple[KillSender, str] | None:
    for name in _GUARDS:
        command = ("journalctl", "--quiet", "--no-pager", "--output=cat", f"--since=@{int(since)}", f"--unit={name}")
        for line in _output(*command).splitlines():
            if _killed_ours(line, pids, groups):
                return name, line.strip()[:200]
    return None


def _killed_ours(line: str, pids: set[int], groups: list[str]) -> bool:
    if match := _KILLED_GROUP.search(line):
        killed = match["group"].rstrip("/")
        return any(f"{group}/".startswith(f"{killed}/") for group in groups)
    process = _KILLED_PROCESS.search(line)
    return process is not None and int(process["pid"]) in pids


def _slurm(now: float) -> tuple[KillSender, str] | None:
    job = os.environ.get("SLURM_JOB_ID", "")
    if not job:
        return None
    if found := _STATE.search(answer := _output("scontrol", "show", "job", job, "--oneliner")):
        return (_STATES[found[1]], answer[:200].strip()) if found[1] in _STATES else None
    end = os.environ.get("SLURM_JOB_END_TIME", "")
    if end.isdigit() and abs(now - int(end)) <= _CLOCK_SECONDS:
        return "slurm_time_limit", f"job {job} ends at {end}"
    return None


def _output(*command: str) -> str:
    try:
        done = subprocess.run(command, capture_output=True, timeout=_ANSWER_SECONDS, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.decode(errors="replace")
