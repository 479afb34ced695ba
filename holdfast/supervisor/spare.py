"""Keeps one child ready: an interpreter that has imported what the next attempt needs, and waits to become it.

It is a separate process and not a fork, so threads and locks of imported libraries do no harm, its exit status is known
like that of any child, and it has its own environment. It serves only an attempt with exactly the environment and the
folder it was started with; every other attempt gets a new interpreter. It ends with this process: by the kernel's
signal where there is one, and because the pipe it waits on is closed.
"""

import contextlib
import json
import os
import select
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from holdfast.core.env import ATTEMPT_VARIABLE
from holdfast.supervisor import launch as launcher

READY, TAKEN = b"ready\n", b"taken\n"
_ANSWER_SECONDS = 2.0
_ROOM = 4096  # bytes for the name of the attempt's folder, which the spare writes over them


class Spare:
    """At most one process that waits to become the next attempt."""

    def __init__(self, waiter: str, modules: tuple[str, ...], cwd: Path, environment: Mapping[str, str]):
        self._command = (sys.executable, "-m", waiter)
        self._modules, self._cwd, self._environment = modules, cwd, dict(environment)
        self._process: subprocess.Popen[bytes] | None = None

    def make(self) -> None:
        """Start one, unless one is waiting. The calling thread must live as long as the attempt it becomes."""
        if self._process and self._process.poll() is None:
            return
        self.close()
        with contextlib.suppress(OSError):  # it only saves time
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", str(Path(launcher.__file__)), str(os.getpid()), *self._command],
                cwd=self._cwd,
                env={**self._environment, ATTEMPT_VARIABLE: " " * _ROOM},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )

    @property
    def is_ready(self) -> bool:
        """True when one has imported everything and waits."""
        if not self._process or not self._process.stdout or self._process.poll() is not None:
            return False
        return bool(select.select([self._process.stdout], [], [], 0)[0])

    def take(
        self, command: tuple[str, ...], cwd: Path, environment: Mapping[str, str], attempt: Path
    ) -> "subprocess.Popen[bytes] | None":
        """Let the waiting process become this attempt; None when none waits that fits. None waits afterwards."""
        fits = command[:2] == self._command[:2] and command[2] in self._modules and len(command) == 4
        is_same = cwd == self._cwd and dict(environment) == self._environment
        if not (fits and is_same and self.is_ready and len(os.fsencode(attempt)) < _ROOM):
            self.close()
            self._environment = dict(environment)  # of the current plan, which the next attempt will have too
            return None
        process, self._process = self._process, None
        if process and _hand_over(process, {"module": command[2], "attempt": str(attempt)}):
            return process
        if process:
            _end(process)
        return None

    def close(self) -> None:
        """End the waiting process."""
        process, self._process = self._process, None
        if process:
            _end(process)

    def __enter__(self) -> "Spare":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _hand_over(process: "subprocess.Popen[bytes]", asked: Mapping[str, str]) -> bool:
    """Tell the process what to become; False if it does not respond because it was killed or stopped."""
    to_process, from_process = process.stdin, process.stdout
    if to_process is None or from_process is None:
        return False
    try:
        os.write(to_process.fileno(), json.dumps(asked).encode() + b"\n")
        # READY is in the pipe already; the answer comes after it.
        answer = b""
        while not answer.endswith(READY + TAKEN) and select.select([from_process], [], [], _ANSWER_SECONDS)[0]:
            if not (more := os.read(from_process.fileno(), 64)):
                break
            answer += more
    except OSError:  # it has just ended
        return False
    _close_pipes(process)
    return answer.endswith(READY + TAKEN)


def _end(process: "subprocess.Popen[bytes]") -> None:
    _close_pipes(process)
    process.kill()
    process.wait()


def _close_pipes(process: "subprocess.Popen[bytes]") -> None:
    for pipe in (process.stdin, process.stdout):
        if pipe:
            pipe.close()
