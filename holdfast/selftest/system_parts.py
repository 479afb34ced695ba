"""Parts about the system: its tools, what it shows of processes, and the heartbeat page."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import psutil

from holdfast import __version__
from holdfast.core.heartbeat import read_beat
from holdfast.core.runfolder import DOCTOR
from holdfast.core.text import human_bytes
from holdfast.doctor.machine_checkup import check_machine
from holdfast.doctor.render import render_json
from holdfast.machine.commands import Unanswerable, output_of
from holdfast.selftest.workplace import PartResult, Workplace
from holdfast.supervisor.dumps import find_spy
from holdfast.supervisor.processes import ProcessSample, sample_tree

# What Holdfast asks: arguments, seconds it may take, and whether something does not work without it.
_MAC_TOOLS = {
    "ps": (("ps", "-M", "-p", "{pid}"), 5.0, True),
    "sample": (("sample", "{pid}", "1", "-mayDie"), 20.0, True),
    "sysctl": (("sysctl", "-n", "hw.memsize", "kern.bootsessionuuid"), 5.0, True),
    "vm_stat": (("vm_stat",), 5.0, True),
    "sw_vers": (("sw_vers",), 5.0, False),
    "pmset": (("pmset", "-g"), 5.0, False),
    "ioreg": (("ioreg", "-rd1", "-c", "IOPlatformExpertDevice"), 10.0, False),
    "caffeinate": (("caffeinate", "-is", "true"), 5.0, False),
}
_LINUX_TOOLS = {"py-spy": (("{spy}", "dump", "--nonblocking", "--pid", "{pid}"), 20.0, False)}
_PACKED = ("ps", "sample", "vm_stat", "py-spy")  # the others print serial numbers
_BEATS, _BEATS_SECONDS = 2_000, 20.0
_WAITING = "import time\nprint('x', flush=True)\ntime.sleep(600)"
_BUSY = "print('x', flush=True)\nwhile True: pass"
_LOOK_SECONDS = 1.0
_BUSY_SECONDS = 0.05  # of this, on however crowded a machine
_BEATING = """
import sys, time
from pathlib import Path
from holdfast.core.heartbeat import BeatWriter
writer, beats = BeatWriter(Path(sys.argv[1])), int(sys.argv[2])
writer.enter("step", 0, beats)
print("x", flush=True)
for step in range(1, beats + 1):
    time.sleep(0.0005)
    writer.beat(step)
begun = time.perf_counter()
for step in range(10_000):
    writer.beat(beats)
print((time.perf_counter() - begun) / 10_000, flush=True)
"""


def about_machine(place: Workplace) -> PartResult:
    """What doctor knows of the machine, without its test of the devices, which the later parts do in their own way."""
    checkup = check_machine(0.0)
    (place.folder / DOCTOR).write_text(render_json(checkup), encoding="utf-8")
    facts = checkup.facts
    blockers = [one.slug for one in checkup.findings if one.severity == "blocker"]
    found = (
        f"{facts.os_version}, {facts.chip}, {psutil.cpu_count()} cores, {human_bytes(psutil.virtual_memory().total)}"
    )
    problem = f"; doctor found {', '.join(blockers)}" if blockers else ""
    return PartResult(
        name="machine",
        state="ok",
        summary=f"{found}, Python {facts.python_version}, Holdfast {__version__}{problem}",
        facts={"findings": [one.slug for one in checkup.findings], "unanswered": checkup.unanswered},
    )


def ask_tools(place: Workplace) -> PartResult:
    """Every tool of the system that the supervisor asks, about a process that waits."""
    tools = _MAC_TOOLS if sys.platform == "darwin" else _LINUX_TOOLS
    times: dict[str, object] = {}
    problems: list[str] = []
    is_broken = False
    logs = place.folder / "tools"
    logs.mkdir()
    with _child(place, _WAITING) as child:
        words = {"pid": str(child.pid), "spy": find_spy() or "py-spy"}
        for name, (command, seconds, is_needed) in tools.items():
            begun = time.perf_counter()
            try:
                output = output_of(
                    *(word.format(**words) for word in command), limit_seconds=place.seconds_left(seconds)
                )
                times[name] = round(time.perf_counter() - begun, 3)
                if name in _PACKED:
                    (logs / f"{name}.log").write_text(output, encoding="utf-8")
                if not output.strip() and name != "caffeinate":
                    raise Unanswerable(f"{name} printed nothing")
            except Unanswerable as error:
                problems.append(str(error))
                times[name] = None
                is_broken |= is_needed
        begun = time.perf_counter()
        seen = sample_tree(child.pid).processes
        times["process table"] = round(time.perf_counter() - begun, 4)
        if not seen:
            problems.append("the system shows nothing of a child process")
            is_broken = True
    answered = [f"{name} {_milliseconds(taken)}" for name, taken in times.items() if isinstance(taken, float)]
    return PartResult(
        name="tools",
        state="failed" if is_broken else "ok",
        summary="; ".join([", ".join(answered), *problems]),
        facts={"seconds": times, "problems": problems},
    )


def tell_processes_apart(place: Workplace) -> PartResult:
    """A process that waits, one that computes and one that is stopped must not look alike."""
    with _child(place, _WAITING) as waiting, _child(place, _BUSY) as busy, _child(place, _WAITING) as stopped:
        os.kill(stopped.pid, signal.SIGSTOP)
        kinds = {"waiting": waiting.pid, "computing": busy.pid, "stopped": stopped.pid}
        before = {kind: _look(pid) for kind, pid in kinds.items()}
        time.sleep(_LOOK_SECONDS)
        after = {kind: _look(pid) for kind, pid in kinds.items()}
        os.kill(stopped.pid, signal.SIGCONT)
    facts: dict[str, object] = {}
    for kind, now in after.items():
        first = before[kind]
        used = now.cpu_seconds - first.cpu_seconds if now and first else None
        state = now.threads[0].state if now and now.threads else ""
        facts[kind] = {"state": state, "cpu_seconds": used, "threads": len(now.threads) if now else 0}
        looks = "waiting" if state in ("S", "D", "I") else "stopped" if state in ("T", "t") else "computing"
        if used is not None and used >= _BUSY_SECONDS:
            looks = "computing"
        if now is None or looks != kind:
            found = "nothing" if now is None else f"state {state or 'unknown'} and {used or 0.0:.2f} s of work"
            return PartResult(
                name="processes",
                state="failed",
                summary=f"a {kind} process looks {looks}: {found} in {_LOOK_SECONDS:g} s",
                facts=facts,
            )
    return PartResult(
        name="processes", state="ok", summary="a waiting, a computing and a stopped process are told apart", facts=facts
    )


def read_heartbeat(place: Workplace) -> PartResult:
    """A page that another process writes is read without a torn or lost beat."""
    page = place.folder / "heartbeat"
    counts: list[int] = []
    with _child(place, _BEATING, str(page), str(_BEATS)) as child:
        deadline = time.monotonic() + place.seconds_left(_BEATS_SECONDS)
        while (not counts or counts[-1] < _BEATS) and time.monotonic() < deadline:
            beat = read_beat(page)
            if beat and (not counts or beat.step != counts[-1]):
                counts.append(beat.step)
        answer = child.stdout.readline() if child.stdout and counts and counts[-1] == _BEATS else b""
    each = float(answer or 0)
    is_whole = counts == sorted(counts) and counts[-1:] == [_BEATS] and len(counts) > 1
    return PartResult(
        name="heartbeat",
        state="ok" if is_whole else "failed",
        summary=f"{_BEATS:,} beats of another process, {each * 1e6:.1f} µs each; a reader saw {len(counts):,}"
        + ("" if is_whole else f", the last of step {counts[-1] if counts else 0}"),
        facts={"beats": _BEATS, "seen": len(counts), "seconds_each": each, "page_bytes": _page_bytes()},
    )


@contextmanager
def _child(place: Workplace, code: str, *arguments: str) -> Iterator["subprocess.Popen[bytes]"]:
    """A Python process that has begun to run this code; it is gone afterwards."""
    command = [sys.executable, "-c", code, *arguments]
    process = place.children.start(command, subprocess.PIPE, subprocess.DEVNULL)
    try:
        assert process.stdout
        process.stdout.readline()
        yield process
    finally:
        place.children.end(process)
        process.communicate()


def _look(pid: int) -> ProcessSample | None:
    return next((process for process in sample_tree(pid).processes if process.pid == pid), None)


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1000:.{0 if seconds >= 0.01 else 1}f} ms" if seconds < 1 else f"{seconds:.1f} s"


def _page_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE")
