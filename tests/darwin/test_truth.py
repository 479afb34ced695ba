"""What is said about failures on macOS: causes, what was ruled out, memory, crash reports. The processes are real."""

import contextlib
import json
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

import holdfast
from holdfast.core.event_log import read_events
from holdfast.core.events import CauseCorrected, WatchLimited
from holdfast.core.evidence import Diagnosis
from holdfast.core.observations import Asked, ExitStatus, JetsamKill, KilledExternally, MemoryRoom, OwnCode
from holdfast.core.records import Outcome, read_record
from holdfast.core.runfolder import EVENTS
from holdfast.hazards.diagnose import diagnose
from holdfast.logs.log_text import read_evidence
from holdfast.runs.command import command_spec, make_folder, make_request
from holdfast.runs.state import read_state
from holdfast.runs.supervise import supervise
from holdfast.supervisor import attempt_watch, mac_reports, mac_waits
from holdfast.supervisor.attempt import StopRequest, run_attempt
from holdfast.supervisor.budgets import Budgets
from holdfast.supervisor.child import Launch
from holdfast.supervisor.collect import read_collected
from holdfast.supervisor.ladder import choose_fallback
from holdfast.supervisor.ladders import command_ladder
from holdfast.supervisor.late_reports import LateReports
from holdfast.supervisor.mac_reports import find_crash_report, find_jetsam_kills
from holdfast.supervisor.mac_waits import read_sample
from holdfast.supervisor.macos import read_ps_threads
from holdfast.supervisor.outcome import tried_of
from tests.darwin.test_hang_times import ARMED, OWN_LOCK

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="pretends a macOS on Linux")

RECORDED = Path(__file__).parent / "recorded"
GB = 1_000_000_000


@pytest.fixture
def reports(tmp_path, monkeypatch):
    """The folder in which macOS leaves its reports."""
    folder = tmp_path / "DiagnosticReports"
    folder.mkdir()
    monkeypatch.setattr(mac_reports, "report_folders", lambda: (folder,))
    monkeypatch.setattr("holdfast.supervisor.late_reports.report_folders", lambda: (folder,))
    return folder


@pytest.fixture
def plenty(monkeypatch):
    """A machine of 16 GB with half of it free."""
    free = [8 * GB]

    class Memory:
        total = 16 * GB

        @property
        def available(self) -> int:
            return free[0]

    monkeypatch.setattr(psutil, "virtual_memory", Memory)
    return free


def run(
    folder: Path, code: str, *, on_start: Callable[[Path], None] = lambda _: None, limit_seconds: float = 8.0
) -> tuple[Outcome, Diagnosis]:
    """One attempt of a program."""
    attempt = folder / "attempts" / "01"
    (attempt / "stacks").mkdir(parents=True)
    script = folder / "program.py"
    script.write_text(ARMED + code)
    preload = str(Path(holdfast.__file__).parent / "preload")
    command = (sys.executable, "-S", str(script), str(attempt / "stacks"))
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": preload}
    threading.Thread(target=on_start, args=(attempt,), daemon=True).start()
    launch = Launch(command, folder, environment, attempt)
    return run_attempt(launch, Budgets(limit_seconds), lambda event: None, StopRequest())


KILLS_ITSELF = "print('x', flush=True)\ntime.sleep(0.3)\nos.kill(os.getpid(), signal.SIGKILL)\n"


def test_kill_with_plenty_of_memory_is_external(tmp_path, mac, reports, plenty):
    outcome, diagnosis = run(tmp_path, KILLS_ITSELF)
    assert diagnosis.slug == "process-killed"
    assert outcome.is_external
    seen = read_collected(tmp_path / "attempts" / "01").observations
    assert next(one for one in seen if isinstance(one, MemoryRoom)).is_ample
    assert next(one for one in seen if isinstance(one, KilledExternally)).sender == ""


def test_repeated_early_kills_end_after_three_attempts(tmp_path, mac, reports, plenty):
    outcome, diagnosis = run(tmp_path, KILLS_ITSELF)
    ladder = command_ladder(has_accelerator=False)
    tries = [tried_of(outcome)]
    while choose_fallback(diagnosis, tries, ladder).action == "again":
        tries.append(tried_of(outcome))
    assert len(tries) == 3


def test_kill_with_memory_near_its_end_may_be_the_systems(tmp_path, mac, reports, plenty):
    plenty[0] = GB // 2
    outcome, diagnosis = run(tmp_path, KILLS_ITSELF)
    assert diagnosis.slug == "host-oom"
    assert diagnosis.confidence != "proven"
    assert not outcome.is_external


def test_jetsam_record_proves_lack_of_memory(tmp_path, mac, reports, plenty):
    def record(attempt: Path) -> None:
        while not (attempt / "child.json").exists():
            time.sleep(0.01)
        pid = json.loads((attempt / "child.json").read_text())["pid"]
        text = (RECORDED / "JetsamEvent.ips").read_text().replace("4624", str(pid))
        (reports / "JetsamEvent-2026-11-16-065500.ips").write_text(text)

    _, diagnosis = run(tmp_path, KILLS_ITSELF, on_start=record)
    assert (diagnosis.slug, diagnosis.confidence) == ("host-oom", "proven")


def test_only_what_this_system_was_asked_is_ruled_out(tmp_path, mac, reports, plenty):
    outcome, diagnosis = run(tmp_path, "print('x', flush=True)\nthreading.Event().wait(600)\n")
    assert outcome.outcome == "hung"
    assert diagnosis.slug != "mps-hang"
    asked = next(one for one in read_collected(tmp_path / "attempts" / "01").observations if isinstance(one, Asked))
    assert set(outcome.cause.ruled_out) <= {"crash_of_another_process", "full_disk", "deadlock"}
    assert ("deadlock" in outcome.cause.ruled_out) <= ("waits" in asked.questions)


def test_own_lock_is_named_with_its_line(tmp_path, mac, reports, plenty, monkeypatch):
    monkeypatch.setattr(mac_waits, "GAP_SECONDS", 0.5)
    monkeypatch.setattr(attempt_watch, "WINDOW_SECONDS", 1.0)
    outcome, diagnosis = run(tmp_path, OWN_LOCK, limit_seconds=60.0)
    assert outcome.outcome == "hung"
    assert diagnosis.slug == "script-deadlock"
    place = outcome.cause.proof
    assert isinstance(place, OwnCode)
    assert (place.how, place.place.file, place.place.source) == ("waits_for_own_lock", "program.py", "lock.acquire()")


def crashed(folder: Path) -> Outcome:
    outcome, diagnosis = run(folder, "print('x', flush=True)\nos.kill(os.getpid(), signal.SIGSEGV)\n")
    assert diagnosis.slug not in ("openmp-duplicate",)
    return outcome


def write_report(reports: Path, pid: int) -> None:
    head, _, body = (RECORDED / "two_openmp.ips").read_text().partition("\n")
    document = json.loads(body)
    document["pid"] = pid
    (reports / "Python-2026-11-16-065500.ips").write_text(head + "\n" + json.dumps(document))


def test_crash_is_named_again_when_its_report_comes_late(tmp_path, mac, reports, plenty, monkeypatch):
    begun = time.monotonic()
    outcome = crashed(tmp_path)
    attempt, late = tmp_path / "attempts" / "01", LateReports()
    late.expect(outcome, attempt)
    assert late.is_expected(outcome.number)
    assert late.take() == []
    write_report(reports, json.loads((attempt / "child.json").read_text())["pid"])
    monkeypatch.setattr("holdfast.supervisor.late_reports._LOOK_SECONDS", 0.0)
    ((corrected, diagnosis),) = late.take()
    assert diagnosis.slug == corrected.diagnosis == "openmp-duplicate"
    assert corrected.cause.slug == "openmp-duplicate"
    assert not late.is_expected(outcome.number)
    assert begun  # nothing waited for it


def test_report_that_never_comes_is_given_up(tmp_path, mac, reports, plenty, monkeypatch):
    outcome = crashed(tmp_path)
    monkeypatch.setattr("holdfast.supervisor.late_reports._WAIT_SECONDS", 0.0)
    monkeypatch.setattr("holdfast.supervisor.late_reports._LOOK_SECONDS", 0.0)
    late = LateReports()
    late.expect(outcome, tmp_path / "attempts" / "01")
    assert late.take() == []
    assert not late.is_expected(outcome.number)


def test_late_reports_reach_the_run_as_an_event(tmp_path, mac, reports, plenty, monkeypatch):
    """The whole run: a crash, a second attempt at once, and the first one's cause corrected meanwhile."""
    monkeypatch.setattr("holdfast.supervisor.late_reports._LOOK_SECONDS", 0.0)
    monkeypatch.setattr("holdfast.runs.supervise.kept_awake", contextlib.nullcontext)
    script = tmp_path / "train.py"
    script.write_text(
        "import os, signal, sys, time\n"
        "if not os.path.exists('second'):\n    open('second', 'w').close()\n    os.kill(os.getpid(), signal.SIGSEGV)\n"
        "open('now', 'w').close()\nend = time.time() + 60\n"
        "while not os.path.exists('done') and time.time() < end:\n    time.sleep(0.05)\n"
    )
    folder = tmp_path / "run"

    def answer() -> None:
        while not (tmp_path / "now").exists():
            time.sleep(0.02)
        write_report(reports, json.loads((folder / "attempts" / "01" / "child.json").read_text())["pid"])
        while not any(isinstance(event, CauseCorrected) for event in read_events(folder / EVENTS)):
            time.sleep(0.05)
        (tmp_path / "done").touch()

    monkeypatch.chdir(tmp_path)
    request = make_request((sys.executable, "-S", str(script)))
    make_folder(request, folder)
    threading.Thread(target=answer, daemon=True).start()
    result = supervise(folder, command_spec(request))
    assert result.state == "finished"
    events = list(read_events(folder / EVENTS))
    assert next(event for event in events if isinstance(event, CauseCorrected)).slug == "openmp-duplicate"
    assert any(isinstance(event, WatchLimited) for event in events)
    state = read_state(folder)
    assert state.attempts[0].slug == "openmp-duplicate"
    assert read_record(folder / "attempts" / "01", Outcome).diagnosis == "openmp-duplicate"


# Recorded texts


@pytest.mark.parametrize(
    ("name", "call", "threads"), [("lock_wait", "psynch_cvwait", 2), ("mutex_wait", "psynch_mutexwait", 1)]
)
def test_innermost_calls_are_read_from_sample(name, call, threads):
    found = read_sample((RECORDED / f"{name}.sample").read_text())
    assert len(found) == threads
    assert (found[0].is_main, found[0].call, found[0].number) == (True, call, 2140391)


def test_names_of_threads_are_read_from_sample():
    assert [one.name for one in read_sample((RECORDED / "lock_wait.sample").read_text())] == ["", "holdfast-parent"]


@pytest.mark.parametrize(("name", "is_named"), [("lock_wait", False), ("mutex_wait", False), ("gpu_wait", True)])
def test_gpu_is_blamed_only_with_its_frames(name, is_named):
    text = "Using device: mps\n" + (RECORDED / f"{name}.sample").read_text()
    assert (diagnose(read_evidence(text, ExitStatus(is_hang=True))).slug == "mps-hang") is is_named


def test_threads_of_ps_are_read():
    assert read_ps_threads((RECORDED / "threads.ps").read_text()) == [
        ("R", 20_030_000_000),
        ("S", 0),
        ("D", 870_000_000),
        ("T", 182_500_000_000),
    ]


def test_jetsam_record_names_its_victim(tmp_path):
    (tmp_path / "JetsamEvent-2026.ips").write_text((RECORDED / "JetsamEvent.ips").read_text())
    (kill,) = find_jetsam_kills({4624, 312}, since=0.0, folders=(tmp_path,))
    assert kill == JetsamKill(
        pid=4624, name="Python", reason="vm-compressor-space-shortage", resident_bytes=780000 * 16384
    )


def test_crash_report_is_found_by_its_process(tmp_path):
    (tmp_path / "Python-2026.ips").write_text((RECORDED / "two_openmp.ips").read_text())
    assert find_crash_report({4711}, since=0.0, folders=(tmp_path,))
    assert not find_crash_report({1}, since=0.0, folders=(tmp_path,))
    assert not find_crash_report({4711}, since=4e9, folders=(tmp_path,))
