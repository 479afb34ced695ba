"""Supervises a run in the background: a process in its own session, its output in supervisor.log."""

import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from holdfast.core.env import node_name
from holdfast.core.errors import RequestError
from holdfast.core.notice import read_notice
from holdfast.core.records import MemberNotice
from holdfast.core.runfolder import NODES, NOTICE, RESULT, SUPERVISOR_LOG
from holdfast.runs.lease import holder

_START_SECONDS = 30.0


def detach_run(run: Path) -> int:
    """Start a supervisor that outlives this terminal; return its pid once it leads the run."""
    process = start_apart([sys.executable, "-m", "holdfast", "resume", str(run), "--quiet"], run / SUPERVISOR_LOG)
    deadline = time.monotonic() + _START_SECONDS
    while time.monotonic() < deadline:
        found = holder(run)
        if (run / RESULT).exists() or (found and found.pid == process.pid) or _takes_part(run, process.pid):
            return process.pid
        if process.poll() is not None:
            break
        time.sleep(0.05)
    printed = (run / SUPERVISOR_LOG).read_text(errors="replace").strip().splitlines()
    raise RequestError("the supervisor did not start", found=printed[-1] if printed else "it printed nothing")


def _takes_part(run: Path, pid: int) -> bool:
    """Whether a supervisor is a member of a run that another machine leads."""
    notice = read_notice(run / NODES / node_name() / NOTICE, MemberNotice)
    return notice is not None and notice.said.pid == pid


def start_apart(
    command: Sequence[str], log: Path, environment: Mapping[str, str] | None = None, folder: Path | None = None
) -> "subprocess.Popen[bytes]":
    """Start a process in its own session and in that folder, without input, its output appended to a file."""
    file = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            start_new_session=True,
            env=environment,
            cwd=folder,
        )
    finally:
        os.close(file)
