"""Three small real faults under `holdfast run`: each must be noticed, named, and followed by a whole attempt."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from queue import Queue
from threading import Thread

from holdfast.core.records import Outcome, read_record
from holdfast.core.runfolder import attempt_folder
from holdfast.core.text import human_seconds
from holdfast.hazards import find_hazard
from holdfast.selftest.workplace import PartResult, Workplace
from holdfast.supervisor.mac_reports import find_crash_report

RUNS = "runs"
_LIMIT_SECONDS = 120.0
_REPORT_SECONDS = 60.0  # macOS usually writes a crash report after 10 seconds, at most a minute
_GRACE_SECONDS = 5.0
_LOOK_SECONDS = 0.05
_PROGRAM = """
import ctypes, os, pathlib, sys, threading, time

kind, folder = sys.argv[1], pathlib.Path(sys.argv[2])
if (folder / "happened").exists():
    print("finished")
    sys.exit()
(folder / "happened").write_text(str(os.getpid()))
time.sleep(0.5)
if kind == "deadlock":
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()
if kind == "crash":
    ctypes.string_at(0)
time.sleep(600)
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """A fault, how it must be named, and within how many seconds it must be noticed."""

    name: str
    slug: str
    noticed_within_seconds: float


FAULTS = (
    Fault(name="deadlock", slug="script-deadlock", noticed_within_seconds=30.0),
    Fault(name="crash", slug="segfault-other", noticed_within_seconds=15.0),
    Fault(name="kill", slug="process-killed", noticed_within_seconds=15.0),
)


class FaultRuns:
    """The three runs, side by side: mostly they wait."""

    def __init__(self) -> None:
        self._results: dict[str, Queue[PartResult | Exception]] = {}

    def part(self, fault: Fault) -> Callable[[Workplace], PartResult]:
        """A part that waits for this fault's run; the first one starts all of them."""

        def wait(place: Workplace) -> PartResult:
            if not self._results:
                self._results = {one.name: Queue() for one in FAULTS}
                for one in FAULTS:  # not a pool, whose threads would keep an interrupted self-test from ending
                    Thread(target=self._answer, args=(place, one), daemon=True).start()
            result = self._results[fault.name].get()
            if isinstance(result, Exception):
                raise result
            return result

        return wait

    def _answer(self, place: Workplace, fault: Fault) -> None:
        try:
            self._results[fault.name].put(_break(place, fault))
        except Exception as error:
            self._results[fault.name].put(error)


def _break(place: Workplace, fault: Fault) -> PartResult:
    folder = place.folder / "faults" / fault.name
    run = place.folder / RUNS / fault.name
    folder.mkdir(parents=True)
    run.parent.mkdir(exist_ok=True)
    program = folder / f"{fault.name}.py"
    program.write_text(_PROGRAM)
    words = [sys.executable, "-m", "holdfast", "run", "--run", str(run), "--"]
    began = time.time()
    with (folder / "output").open("wb") as output:
        process = place.children.start(
            [*words, sys.executable, str(program), fault.name, str(folder)],
            output,
            subprocess.STDOUT,
            XDG_STATE_HOME=str(folder / "state"),  # what works here must not be remembered as a user's run
        )
    try:
        pid, happened = _wait_for_pid(folder / "happened", process, place.seconds_left(_LIMIT_SECONDS))
        if fault.name == "kill" and pid:
            time.sleep(1.0)
            happened = time.time()
            os.kill(pid, signal.SIGKILL)
        code: int | None = process.wait(place.seconds_left(_LIMIT_SECONDS))
    except subprocess.TimeoutExpired:
        code = None
    finally:
        place.children.end(process, _GRACE_SECONDS)
    first = read_record(attempt_folder(run, 1), Outcome) if attempt_folder(run, 1).exists() else None
    result = _judge(fault, first, code)
    if fault.name == "crash" and sys.platform == "darwin" and pid:
        return _with_crash_report(result, pid, began, happened, place)
    return result


def _wait_for_pid(file: Path, run: "subprocess.Popen[bytes]", limit_seconds: float) -> tuple[int, float]:
    """The pid that the program leaves, and when; 0 if it never does."""
    deadline = time.monotonic() + limit_seconds
    while time.monotonic() < deadline and run.poll() is None:
        try:
            if text := file.read_text():
                return int(text), time.time()
        except OSError:
            pass
        time.sleep(_LOOK_SECONDS)
    return 0, time.time()


def _judge(fault: Fault, first: Outcome | None, code: int | None) -> PartResult:
    if first is None:
        summary = f"`holdfast run` left no attempt within {human_seconds(_LIMIT_SECONDS)}"
        return PartResult(name=fault.name, state="failed", summary=summary, facts={"exit_code": code})
    noticed, slug = first.noticed_after_seconds, first.diagnosis or ""
    facts = {"slug": slug, "noticed_after_seconds": noticed, "place": first.place, "exit_code": code}
    when = "noticed at once" if noticed is None else f"noticed after {human_seconds(noticed)}"
    hazard = find_hazard(slug)
    named = f"{hazard.title if hazard else 'no cause was found'} [{slug or 'unknown'}]"
    problems = []
    if slug != fault.slug:
        problems.append(f"expected [{fault.slug}]")
    if noticed is not None and noticed > fault.noticed_within_seconds:
        problems.append(f"expected within {fault.noticed_within_seconds:g} s")
    if code != 0:
        problems.append("the next attempt did not finish" if code is not None else "the run had to be ended")
    return PartResult(
        name=fault.name,
        state="failed" if problems else "ok",
        summary="; ".join([f"{when}: {named}", *problems]),
        facts=facts,
    )


def _with_crash_report(result: PartResult, pid: int, began: float, happened: float, place: Workplace) -> PartResult:
    """The same with the time that macOS took to write its report."""
    deadline = time.monotonic() + place.seconds_left(_REPORT_SECONDS)
    while not (report := find_crash_report({pid}, began)) and time.monotonic() < deadline:
        time.sleep(_LOOK_SECONDS)
    seconds = round(time.time() - happened, 1)
    told = f"macOS wrote its report within {human_seconds(seconds)}" if report else "macOS wrote no report"
    return PartResult(
        name=result.name,
        state=result.state,
        summary=f"{result.summary}; {told}",
        facts={**result.facts, "crash_report_seconds": seconds if report else None},
    )
