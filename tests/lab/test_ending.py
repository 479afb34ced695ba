"""Ending a tree: every kind of unwilling process is gone in time, and nothing else is touched."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from holdfast.core.errors import RequestError
from holdfast.core.event_log import EventLog, read_events
from holdfast.core.events import CheckpointSaved, Event, Ticked, TrainingFinished, TreeSampled
from holdfast.core.runfolder import EVENTS, SAMPLES
from holdfast.supervisor.attempt import StopRequest, run_attempt
from holdfast.supervisor.budgets import Budgets
from holdfast.supervisor.child import Child, Launch, start_child
from holdfast.supervisor.ending import end_tree, send
from holdfast.supervisor.members import find_member, find_members
from holdfast.supervisor.processes import Identity

pytestmark = pytest.mark.lab
LINUX = sys.platform == "linux"

DEAF = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('ready', flush=True); time.sleep(300)"
POLITE = """
import signal, sys, time
def leave(number, frame):
    print('saved', flush=True)
    sys.exit(0)
signal.signal(signal.SIGTERM, leave)
print('ready', flush=True)
time.sleep(300)
"""
# re matching of this kind takes for ever, in native code, and never gives the GIL away
HOLDS_GIL = "import re; print('ready', flush=True); re.match('(a+)+$', 'a' * 64 + 'b')"
DAEMON = """
import os, subprocess, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        open(sys.argv[1], 'w').write(str(os.getpid()))
        import signal
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        time.sleep(300)
    os._exit(0)
os.wait()
while not os.path.exists(sys.argv[1]):
    time.sleep(0.01)
print('ready', flush=True)
if sys.argv[2] == 'stay':
    time.sleep(300)
"""
MAKES_CHILDREN = """
import subprocess, sys, time
child = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(300)"
while True:
    subprocess.Popen([sys.executable, '-S', '-c', child])
    print('ready', flush=True)
    time.sleep(0.02)
"""


def start(attempt: Path, script: str, *arguments: str, wait_for: str = "ready") -> Child:
    command = (sys.executable, "-S", "-c", script, *arguments)
    child = start_child(Launch(command, attempt.parent, dict(os.environ), attempt))
    until(lambda: wait_for in output(attempt))
    return child


def output(attempt: Path) -> str:
    return (attempt / "output.log").read_text()


def until(is_true, seconds: float = 30) -> None:
    deadline = time.monotonic() + seconds
    while not is_true():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def nothing_is_left(attempt: Path, child: Child) -> bool:
    return not [member for member in find_members(attempt, child.identity) if not member.is_gone]


def test_responsive_process_ends_by_itself(tmp_path):
    child = start(tmp_path / "01", POLITE)
    ended = end_tree(tmp_path / "01", child)
    assert child.poll() == 0
    assert "saved" in output(tmp_path / "01")
    assert ended.killed == ()
    assert ended.seconds < 5


def test_process_ignoring_the_stop_is_killed_after_grace(tmp_path):
    child = start(tmp_path / "01", DEAF)
    ended = end_tree(tmp_path / "01", child, grace_seconds=0.5)
    assert child.poll() == -signal.SIGKILL
    assert ended.killed == (child.pid,)
    assert ended.left == ()


def test_stopped_process_is_continued_so_that_it_can_save(tmp_path):
    child = start(tmp_path / "01", POLITE)
    os.kill(child.pid, signal.SIGSTOP)
    until(lambda: find_member(child.pid).state == "T")
    end_tree(tmp_path / "01", child)
    assert child.poll() == 0
    assert "saved" in output(tmp_path / "01")


def test_process_ignoring_the_request_is_killed(tmp_path):
    child = start(tmp_path / "01", DEAF)
    os.kill(child.pid, signal.SIGSTOP)
    end_tree(tmp_path / "01", child, grace_seconds=0.3)
    assert child.poll() == -signal.SIGKILL


def test_native_code_holding_the_gil_is_killed(tmp_path):
    child = start(tmp_path / "01", "import signal; signal.signal(signal.SIGTERM, lambda *_: None); " + HOLDS_GIL)
    end_tree(tmp_path / "01", child, grace_seconds=0.5)
    assert child.poll() == -signal.SIGKILL


@pytest.mark.parametrize("parent", ["stay", "leave"])
def test_a_daemon_that_left_parent_and_session_is_found(tmp_path, parent):
    attempt, note = tmp_path / "01", tmp_path / "pid"
    child = start(attempt, DAEMON, str(note), parent)
    if parent == "leave":
        until(lambda: child.poll() is not None)
    daemon = int(note.read_text())
    assert find_member(daemon).session != child.pid
    ended = end_tree(attempt, child, grace_seconds=0.5)
    assert daemon in ended.killed
    assert nothing_is_left(attempt, child)


def test_children_born_while_the_tree_is_ended_are_ended_too(tmp_path):
    child = start(tmp_path / "01", MAKES_CHILDREN)
    end_tree(tmp_path / "01", child, grace_seconds=0.5)
    time.sleep(0.2)
    assert nothing_is_left(tmp_path / "01", child)


def test_a_later_supervisor_ends_what_the_folder_names(tmp_path):
    child = start(tmp_path / "01", DEAF)
    end_tree(tmp_path / "01", None, grace_seconds=0.2)
    assert child.poll() == -signal.SIGKILL
    assert json.loads((tmp_path / "01" / "child.json").read_text())["pid"] == child.pid


def test_stop_at_child_exit_leaves_nothing_running(tmp_path):
    stop = StopRequest()

    def ask_late(event: Event) -> None:
        if isinstance(event, Ticked):
            time.sleep(0.5)  # the child has ended by then
            stop.ask()

    launch = Launch(("sh", "-c", "sleep 300 & exit 3"), tmp_path, dict(os.environ), tmp_path)
    outcome, _ = run_attempt(launch, Budgets(), ask_late, stop)
    assert outcome.outcome == "stopped"
    assert not find_members(tmp_path, None)


@pytest.mark.parametrize(
    ("event", "outcome"), [(TrainingFinished(steps=3, kept_step=3), "finished"), (CheckpointSaved(step=3), "died")]
)
def test_a_process_that_dies_when_all_is_done_has_finished(tmp_path, event, outcome):
    EventLog(tmp_path / EVENTS).write(event)
    launch = Launch(("sh", "-c", "kill -ABRT $$"), tmp_path, dict(os.environ), tmp_path)
    found, _ = run_attempt(launch, Budgets(), lambda event: None, StopRequest())
    assert found.outcome == outcome


def test_short_attempt_is_recorded_with_its_peak_memory(tmp_path):
    code = "import time; held = b'x' * 200_000_000; time.sleep(1.5); del held; time.sleep(1)"
    launch = Launch((sys.executable, "-S", "-c", code), tmp_path, dict(os.environ), tmp_path)
    run_attempt(launch, Budgets(), lambda event: None, StopRequest())
    last = list(read_events(tmp_path / SAMPLES))[-1]
    assert isinstance(last, TreeSampled)
    assert last.peak_bytes > 200_000_000 > last.resident_bytes > 0


def test_a_pid_that_was_used_again_is_left_alone(tmp_path):
    stranger = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(300)"])
    try:
        found = find_member(stranger.pid)
        older = Identity(stranger.pid, found.start_ticks - 1)
        assert not send(older, signal.SIGKILL)
        (tmp_path / "01").mkdir()
        (tmp_path / "01" / "child.json").write_text(
            json.dumps({"pid": older.pid, "start_ticks": older.start_ticks, "boot_id": ""})
        )
        end_tree(tmp_path / "01", None, grace_seconds=0.1, known=[older])
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()


def test_unrelated_process_of_the_supervisor_is_left_alone(tmp_path):
    neighbour = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(300)"])
    try:
        child = start(tmp_path / "01", DEAF)
        end_tree(tmp_path / "01", child, grace_seconds=0.1)
        assert neighbour.poll() is None
    finally:
        neighbour.kill()
        neighbour.wait()


@pytest.mark.skipif(not LINUX, reason="only Linux has a parent-death signal; elsewhere the preload looks for it")
def test_the_child_of_a_killed_supervisor_ends(tmp_path):
    command = (sys.executable, "-S", "-c", POLITE)
    supervisor = f"""
import os, time
from pathlib import Path
from holdfast.supervisor.child import Launch, start_child
start_child(Launch({command!r}, Path("/"), dict(os.environ), Path({str(tmp_path / "01")!r})))
time.sleep(300)
"""
    process = subprocess.Popen([sys.executable, "-c", supervisor])
    log = tmp_path / "01" / "output.log"
    until(lambda: log.exists() and "ready" in log.read_text())
    process.kill()
    process.wait()
    until(lambda: "saved" in log.read_text(), seconds=5)


@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="no /dev/shm on this system")
def test_own_shared_memory_is_freed_others_kept(tmp_path):
    script = """
import os, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
open(f'/dev/shm/torch_{os.getpid()}_1_0', 'wb').write(b'x')
print('ready', flush=True)
time.sleep(300)
"""
    kept = Path(f"/dev/shm/torch_{os.getpid()}_1_0")
    kept.write_bytes(b"x")
    try:
        child = start(tmp_path / "01", script)
        end_tree(tmp_path / "01", child, grace_seconds=0.1)
        assert not Path(f"/dev/shm/torch_{child.pid}_1_0").exists()
        assert kept.exists()
    finally:
        kept.unlink()


@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="no /dev/shm on this system")
def test_semaphores_of_a_killed_process_are_freed(tmp_path):
    script = """
import multiprocessing, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
locks = [multiprocessing.get_context('spawn').Lock() for _ in range(3)]
print(' '.join(lock._semlock.name for lock in locks), 'ready', flush=True)
time.sleep(300)
"""
    child = start(tmp_path / "01", script)
    files = [Path(f"/dev/shm/sem.{word[1:]}") for word in output(tmp_path / "01").split() if word.startswith("/")]
    assert len(files) == 3
    assert all(file.exists() for file in files)
    end_tree(tmp_path / "01", child, grace_seconds=0.1)
    assert not any(file.exists() for file in files)


def test_frozen_cgroup_is_reported(tmp_path):
    group = Path(f"/sys/fs/cgroup/freezer/holdfast-lab-{os.getpid()}")
    try:
        group.mkdir()
    except OSError as error:
        pytest.skip(f"this machine lets us make no freezer group: {error}")
    child = start(tmp_path / "01", DEAF)
    try:
        (group / "tasks").write_text(str(child.pid))
        (group / "freezer.state").write_text("FROZEN")
        until(lambda: (group / "freezer.state").read_text().strip() == "FROZEN")
        ended = end_tree(tmp_path / "01", child, grace_seconds=0.1)
        assert (ended.left[0].pid, ended.left[0].held_by) == (child.pid, "frozen_cgroup")
        assert ended.seconds < 6
    finally:
        (group / "freezer.state").write_text("THAWED")
        until(lambda: child.poll() is not None)
        group.rmdir()


def test_missing_command_is_a_request_error(tmp_path):
    with pytest.raises(RequestError, match="no command named 'pyton'"):
        start_child(Launch(("pyton", "train.py"), tmp_path, {"PATH": os.environ["PATH"]}, tmp_path / "01"))
    assert not (tmp_path / "01").exists()


def test_a_child_has_no_input_and_its_own_session(tmp_path):
    script = "import os, sys; print(repr(sys.stdin.read()), os.getsid(0) == os.getpid(), 'ready', flush=True)"
    child = start(tmp_path / "01", script)
    assert "'' True" in output(tmp_path / "01")
    until(lambda: child.poll() == 0)
