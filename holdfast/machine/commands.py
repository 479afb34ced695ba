"""Asks the system's own tools, each within a time limit. What they print is read by pure functions elsewhere."""

import contextlib
import os
import shutil
import signal
import subprocess

_GIVE_UP_SECONDS = 1.0  # a process stuck in a driver cannot be killed; it is left behind


class Unanswerable(Exception):
    """A question that this machine could not answer, with the reason."""


def output_of(*command: str, limit_seconds: float = 5.0) -> str:
    """The output of a command, run without a shell; raises Unanswerable with the reason if it fails."""
    program = shutil.which(command[0])
    if program is None:
        raise Unanswerable(f"{command[0]} is not on the PATH")
    process = subprocess.Popen(
        [program, *command[1:]],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=os.environ | {"LC_ALL": "C"},
        start_new_session=True,
    )
    try:
        out, err = process.communicate(timeout=limit_seconds)
    except subprocess.TimeoutExpired:
        kill_group(process)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.communicate(timeout=_GIVE_UP_SECONDS)
        raise Unanswerable(f"{command[0]} did not respond within {limit_seconds:g} s") from None
    if process.returncode != 0:
        said = (err or out).decode(errors="replace").strip().splitlines()
        raise Unanswerable(
            f"{' '.join(command)} ended with code {process.returncode}: {said[0] if said else 'no output'}"
        )
    return out.decode(errors="replace")


def kill_group(process: "subprocess.Popen[bytes]") -> None:
    """Kill a child that was started in its own session, with all of its own children."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        if hasattr(os, "killpg"):
            os.killpg(process.pid, signal.SIGKILL)
        else:
            process.kill()
