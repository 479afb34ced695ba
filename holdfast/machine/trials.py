"""Tests each device in a short-lived child process; a crash or a hang of the child is an answer too.

The child runs in its own session with its output in files, so it cannot affect this process, and its whole group is
killed at the time limit. The CPU is tested first; that child also lists the accelerators that torch can use.
"""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import IO, Literal

from holdfast.core.facts import Answer, DeviceTrial
from holdfast.machine.commands import Unanswerable, kill_group
from holdfast.machine.gpu import has_nvidia_driver
from holdfast.machine.libraries import probe_torch

_CHILD = Path(__file__).with_name("device_trial.py")
_GRACE_SECONDS = 2.0  # for the child to print its stacks and end, before the group is killed
_REPORTED: tuple[Literal["agrees", "differs", "error"], ...] = ("agrees", "differs", "error")  # by the child itself
_AT_ONCE = 16  # all GPUs of a big machine together, so that one limit holds for all


@dataclass(frozen=True, slots=True)
class TrialEnd:
    """How a child ended, with its output and its error output."""

    lines: tuple[dict[str, object], ...]
    errors: str
    code: int | None  # negative for a signal; None if it had to be killed
    seconds: float


class Children:
    """The children of one checkup, so that all of them can be ended with it."""

    def __init__(self) -> None:
        self._running: set[subprocess.Popen[bytes]] = set()
        self._is_stopped = False
        self._lock = Lock()

    def start(
        self, command: list[str], out: IO[bytes] | int, err: IO[bytes] | int, **variables: str
    ) -> "subprocess.Popen[bytes]":
        """Start a child with its output in files and these additional variables, unless all were stopped."""
        with self._lock:  # held during the start: a child is either in the list when all are stopped, or never started
            if self._is_stopped:
                raise Unanswerable("stopped")
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                env=os.environ | {"PYTHONFAULTHANDLER": "1", "PYTHONIOENCODING": "utf-8"} | variables,
                start_new_session=True,
            )
            self._running.add(process)
            return process

    def end(self, process: "subprocess.Popen[bytes]", grace_seconds: float = 0.0) -> None:
        """Kill a child and everything it started; before, let it end by itself for this long if it is asked to."""
        if grace_seconds and process.poll() is None:
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(grace_seconds)
        with self._lock:
            kill_group(process)
            self._running.discard(process)

    def stop(self, grace_seconds: float = 0.0) -> None:
        """Kill all children, after asking them to end if they have this long, and start no more."""
        with self._lock:
            self._is_stopped = True
            if grace_seconds:
                for process in self._running:
                    process.terminate()
                deadline = time.monotonic() + grace_seconds
                while any(process.poll() is None for process in self._running) and time.monotonic() < deadline:
                    time.sleep(0.05)
            for process in self._running:
                kill_group(process)


def probe_trials(
    limit_seconds: float, children: Children, tell: Callable[[str], None] = lambda _: None
) -> Answer[tuple[DeviceTrial, ...]]:
    """Run one training step on every device that torch can use."""
    if limit_seconds <= 0:
        return Answer((), "--device-timeout is 0")
    if probe_torch().value is None:
        return Answer((), "torch is not installed in this Python")
    tell("cpu")
    cpu = run_child("cpu", limit_seconds, children)
    devices = found_devices(cpu)
    if devices:
        tell(", ".join(devices))
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        endings = list(pool.map(lambda device: run_child(device, limit_seconds, children), devices))
    trials = [judge("cpu", cpu, limit_seconds), *lost_devices(cpu, limit_seconds, has_nvidia=has_nvidia_driver())]
    trials += [judge(device, ending, limit_seconds) for device, ending in zip(devices, endings, strict=True)]
    return Answer(tuple(trials), "one training step in a child process for each device")


def run_child(device: str, limit_seconds: float, children: Children) -> TrialEnd:
    """Run the child for one device, for at most the time limit and a short grace period."""
    return run_command([sys.executable, "-P", str(_CHILD), device, str(limit_seconds)], limit_seconds, children)


def run_command(command: list[str], limit_seconds: float, children: Children) -> TrialEnd:
    """Run a child that prints JSON lines, for at most the time limit and a short grace period."""
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="holdfast-trial-", ignore_cleanup_errors=True) as name:
        out, err = Path(name, "out"), Path(name, "err")
        with out.open("wb") as out_file, err.open("wb") as err_file:
            process = children.start(command, out_file, err_file)
        try:
            code: int | None = process.wait(limit_seconds + _GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            children.end(process)
        return TrialEnd(
            read_lines(out.read_text(encoding="utf-8", errors="replace")),
            err.read_text(encoding="utf-8", errors="replace"),
            code,
            round(time.monotonic() - started, 1),
        )


def read_lines(text: str) -> tuple[dict[str, object], ...]:
    """The child's own lines; libraries may print others in between."""
    found: list[dict[str, object]] = []
    for line in text.splitlines():
        if line.startswith("{"):
            try:
                value = json.loads(line)
            except ValueError:
                continue
            if isinstance(value, dict):
                found.append(value)
    return tuple(found)


def judge(device: str, ending: TrialEnd, limit_seconds: float) -> DeviceTrial:
    """The answer for a device, from how its child ended."""
    for line in ending.lines:
        for outcome in _REPORTED:
            if line.get("outcome") == outcome:
                detail = str(line.get("detail", ""))
                error = detail if outcome == "error" else ""
                return DeviceTrial(device=device, outcome=outcome, detail=detail, seconds=ending.seconds, error=error)
    return failed_trial(device, ending, limit_seconds)


def found_devices(ending: TrialEnd) -> list[str]:
    """The accelerators that the CPU's child listed."""
    devices = [line["devices"] for line in ending.lines if isinstance(line.get("devices"), list)]
    return [str(device) for group in devices if isinstance(group, list) for device in group]


def lost_devices(ending: TrialEnd, limit_seconds: float, *, has_nvidia: bool) -> list[DeviceTrial]:
    """Accelerators that torch was built for but cannot use: listing them failed, crashed or hung."""
    lost: list[DeviceTrial] = []
    for line in ending.lines:
        kind, reason = str(line.get("kind", "")), str(line.get("reason", ""))
        if reason and not line.get("devices") and (kind != "cuda" or has_nvidia):
            lost.append(DeviceTrial(device=kind, outcome="error", detail=reason, seconds=0.0, error=reason))
    if ending.lines and "looking_for" in ending.lines[-1]:
        lost.append(failed_trial(str(ending.lines[-1]["looking_for"]), ending, limit_seconds))
    return lost


def failed_trial(device: str, ending: TrialEnd, limit_seconds: float) -> DeviceTrial:
    """The answer for a device whose child ended without a result."""
    doing = [str(line["doing"]) for line in ending.lines if "doing" in line]
    during = f"during {doing[-1]}" if doing else "before Python reached its first line"
    if frame := innermost_frame(ending.errors):
        during += f", in {frame}"
    if ending.code is None or "Timeout (" in ending.errors:
        detail = f"no response within {limit_seconds:g} s {during}"
        return DeviceTrial(device=device, outcome="hang", detail=detail, seconds=ending.seconds)
    printed = [line.strip() for line in ending.errors.partition("Fatal Python error")[0].splitlines() if line.strip()]
    error = printed[-1][:200] if printed else ""
    name = _signal_name(-ending.code) if ending.code < 0 else ""
    return DeviceTrial(
        device=device,
        outcome="crash" if name else "error",
        detail=f"{name or f'exit code {ending.code}'} {during}" + (f": {error}" if error else ""),
        seconds=ending.seconds,
        signal=name,
        error=error,
    )


def innermost_frame(faulthandler_text: str) -> str:
    """The most recent call in faulthandler's output, as "function (file:line)"."""
    threads = re.split(r"^(?=(?:Current thread|Thread) )", faulthandler_text, flags=re.MULTILINE)
    thread = next((part for part in threads if part.startswith("Current")), threads[-1])  # the main thread comes last
    found = re.search(r'File "([^"]+)", line (\d+) in (\S+)', thread)
    return f"{found[3]} ({'/'.join(Path(found[1]).parts[-2:])}:{found[2]})" if found else ""


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
