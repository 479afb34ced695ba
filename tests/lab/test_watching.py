"""Real little programs that hang, each in its own way, and healthy ones that sample like them."""

import contextlib
import ctypes
import fcntl
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from holdfast.core.observations import Verdict, WaitTarget
from holdfast.supervisor import liveness
from holdfast.supervisor.budgets import Budgets
from tests.lab.watched import Watched, start, watch_all

pytestmark = [pytest.mark.lab, pytest.mark.skipif(sys.platform != "linux", reason="what threads wait for is in /proc")]

# Alone it takes 4.5 to 5.5 s; a crowded machine makes the watch itself wait. Less than the budget of a step.
AT_ONCE_SECONDS = 25.0
LONG_SECONDS = 300.0  # for what must happen in the end, however crowded the machine is
SHORT_SECONDS = 5.0


class Short(Budgets):
    """Budgets of a few seconds, so that a test need not wait for those of a user."""

    def __init__(self) -> None:
        super().__init__(step_floor_seconds=SHORT_SECONDS)

    def network_seconds(self, phase: str) -> float:
        return SHORT_SECONDS

    def outside_seconds(self) -> float:
        return SHORT_SECONDS


class ShortSteps(Budgets):
    """Any step may take two seconds; what is outside has the time that users give it."""

    def __init__(self) -> None:
        super().__init__(step_floor_seconds=2.0)


def attach(pid: int) -> None:
    """Hold a process as a debugger does."""
    assert ctypes.CDLL(None, use_errno=True).ptrace(16, pid, 0, 0) == 0, os.strerror(ctypes.get_errno())


def detach(pid: int) -> None:
    ctypes.CDLL(None).ptrace(17, pid, 0, 0)


class _Answers(BaseHTTPRequestHandler):
    """Answers late, in drips, or reads slowly, by the path it is asked for."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        seconds, self.path = self.server.seconds, self.path.strip("/")
        if self.path == "silent":
            time.sleep(seconds)
        self.send_response(200)
        self.send_header("Content-Length", "10")
        self.end_headers()
        for _ in range(10):
            time.sleep(seconds / 10 if self.path == "drip" else 0)
            self.wfile.write(b".")

    def do_POST(self) -> None:
        left = int(self.headers["Content-Length"])
        while left > 0:
            left -= len(self.rfile.read(min(left, 1 << 20)))
            time.sleep(self.server.seconds / 8)
        self.do_GET()

    def log_message(self, *arguments: object) -> None:
        return None


@contextlib.contextmanager
def answering(seconds: float):
    """A web server outside the tree."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Answers)
    server.seconds, server.daemon_threads = seconds, True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server.server_address[1]
    server.shutdown()
    server.server_close()


@contextlib.contextmanager
def serving(drip_seconds: float | None):
    """A server outside the tree that accepts and says nothing, or one byte now and then."""
    server = socket.create_server(("127.0.0.1", 0))
    kept = []

    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = server.accept()
                kept.append(connection)
                while drip_seconds:
                    time.sleep(drip_seconds)
                    connection.sendall(b".")

    threading.Thread(target=serve, daemon=True).start()
    yield server.getsockname()[1]
    server.close()
    for connection in kept:
        connection.close()


@pytest.fixture(scope="module")
def stuck(tmp_path_factory):
    """Programs in which nothing can ever move again, all at the same time."""
    folder = tmp_path_factory.mktemp("stuck")
    names = ("abba_deadlock", "held_interpreter", "lost_task", "stopped", "loader_lock", "fork_after_openmp")
    return watch_all([start(folder / name, name) for name in names], seconds=LONG_SECONDS)


@pytest.mark.parametrize("name", ["abba_deadlock", "held_interpreter", "lost_task", "loader_lock", "fork_after_openmp"])
def test_a_deadlock_is_noticed_within_seconds(stuck, name):
    sample = stuck[name].last
    assert sample.is_hung, stuck[name].log
    assert sample.verdict.verdict is Verdict.DEADLOCK
    assert sample.noticed_after_seconds < AT_ONCE_SECONDS
    assert sample.verdict.main.stuck
    assert sample.given_up.reason == "verdict"


def test_a_stopped_process_is_noticed_within_seconds(stuck):
    sample = stuck["stopped"].last
    assert sample.is_hung
    assert sample.verdict.verdict is Verdict.STOPPED
    assert sample.noticed_after_seconds < AT_ONCE_SECONDS


def test_worker_blocking_the_others_is_named(stuck):
    assert stuck["loader_lock"].last.verdict.main.stuck.command == "pt_data_worker"


@pytest.fixture(scope="module")
def waiting(tmp_path_factory):
    """Programs that wait for something outside, all at the same time, with a short budget for steps."""
    folder = tmp_path_factory.mktemp("waiting")
    fifo, locked = folder / "never.fifo", folder / "held.lock"
    os.mkfifo(fifo)
    with serving(None) as port, locked.open("w") as holder:
        fcntl.flock(holder, fcntl.LOCK_EX)
        scripts = [
            start(folder / "ask_server", "ask_server", port, budgets=Short()),
            start(folder / "open_fifo", "open_fifo", fifo, budgets=Short()),
            start(folder / "lock_file", "lock_file", locked, budgets=Short()),
            start(folder / "heartbeat_thread", "heartbeat_thread", budgets=Short()),
            start(folder / "crash_loop", "crash_loop", budgets=Short()),
        ]
        return watch_all(scripts, seconds=LONG_SECONDS), {"port": port, "fifo": fifo, "locked": locked}


def test_silent_server_is_named_and_given_up(waiting):
    scripts, made = waiting
    sample = scripts["ask_server"].last
    assert sample.is_hung
    assert sample.verdict.verdict is Verdict.WAIT_NET
    assert sample.verdict.main.last_wait.name == f"127.0.0.1:{made['port']}"
    assert sample.verdict.silent_seconds >= SHORT_SECONDS


@pytest.mark.parametrize(("name", "what"), [("open_fifo", "fifo"), ("lock_file", "locked")])
def test_awaited_file_is_named_by_path(waiting, name, what):
    scripts, made = waiting
    sample = scripts[name].last
    assert sample.is_hung
    assert sample.verdict.verdict is Verdict.WAIT_INPUT
    assert sample.verdict.main.last_wait.name == str(made[what])
    assert sample.noticed_after_seconds >= SHORT_SECONDS  # it was given its time


def test_heartbeat_thread_does_not_hide_stuck_main_thread(waiting):
    sample = waiting[0]["heartbeat_thread"].last
    assert sample.is_hung
    assert sample.verdict.main.wait.target is WaitTarget.LOCK
    assert sample.noticed_after_seconds < 12 * SHORT_SECONDS


def test_children_that_die_one_after_the_other_are_a_hang(waiting):
    script = waiting[0]["crash_loop"]
    assert script.last.is_hung
    assert script.last.verdict.verdict is Verdict.CRASH_LOOP
    assert script.last.verdict.child_exit.code == 1


@pytest.fixture(scope="module")
def spinning(tmp_path_factory):
    """Programs that keep a processor busy and get nowhere, and one that gets somewhere slowly."""
    folder = tmp_path_factory.mktemp("spinning")
    names = ("busy_loop", "spinning_worker", "busy_monitor", "long_evaluation")
    return watch_all([start(folder / name, name, budgets=Short()) for name in names], seconds=LONG_SECONDS)


@pytest.mark.parametrize("name", ["busy_loop", "spinning_worker", "busy_monitor"])
def test_endless_loop_with_unchanged_stack_is_a_hang(spinning, name):
    sample = spinning[name].last
    assert sample.is_hung, spinning[name].text
    assert sample.given_up.reason == "busy_stack_still"
    assert sample.verdict.verdict is Verdict.MOVING


@pytest.mark.full
def test_stuck_main_thread_is_found_without_py_spy(tmp_path, monkeypatch):
    monkeypatch.setattr(liveness, "find_spy", lambda: None)  # the signal that asks for a stack wakes the main thread
    script = watch_all([start(tmp_path / "attempt", "busy_monitor", budgets=Short())], seconds=LONG_SECONDS)
    assert script["busy_monitor"].last.given_up.reason == "busy_stack_still", script["busy_monitor"].text


def test_long_work_with_a_moving_stack_is_left_alone(spinning):
    script = spinning["long_evaluation"]
    assert not any(sample.is_hung for sample in script.samples), script.text
    assert max(sample.silent_seconds for sample in script.samples) > 2 * SHORT_SECONDS


@pytest.fixture(scope="module")
def healthy(tmp_path_factory):
    """Healthy programs that sample hung to a simpler rule, all at the same time; budgets as users have them."""
    folder = tmp_path_factory.mktemp("healthy")
    with serving(2.0) as port:
        scripts = [
            start(folder / "ask_server", "ask_server", port),
            start(folder / "long_task", "long_task"),
            start(folder / "async_loop", "async_loop"),
            start(folder / "slow_steps", "slow_steps"),
            start(folder / "slow_save", "slow_save", folder / "checkpoint"),
            start(folder / "import_torch", "import_torch"),
        ]
        return watch_all(scripts, seconds=20)


@pytest.mark.parametrize("name", ["ask_server", "long_task", "async_loop", "slow_steps", "slow_save", "import_torch"])
def test_a_healthy_program_is_left_alone(healthy, name):
    script = healthy[name]
    assert not any(sample.is_hung for sample in script.samples), script.text
    assert not script.verdicts & {Verdict.DEADLOCK, Verdict.STOPPED, Verdict.CRASH_LOOP}, script.text


QUIET_SECONDS = 9.0  # several times the limit of a step
OUTSIDE = {
    "child_sleeps": "child",
    "child_is_captured": "child",
    "child_computes": "child",
    "slow_http": "server",
    "download": "server",
    "judge": "server",
    "upload": "server",
    "lock_of_another_job": "file_lock",
    "lock_that_is_polled": "sleep",
    "license_server": "sleep",
    "debugger_prompt": "client",
    "map_with_workers": "child",
    "sleep_between_epochs": "sleep",
}


def outside_runs(folder: Path, seconds: float, budgets: type[Budgets] = ShortSteps) -> dict[str, Watched]:
    """Every healthy wait for something outside, all at the same time."""
    locked = folder / "held.lock"
    with answering(seconds) as port, locked.open("w") as holder:
        fcntl.flock(holder, fcntl.LOCK_EX)
        found = {}
        for kind in OUTSIDE:
            place = locked if "lock" in kind else port
            found[kind] = start(folder / kind, "waits_outside", kind, seconds, place, budgets=budgets())
            found[kind].name = kind
        return watch_all(list(found.values()), seconds=seconds + 12)


@pytest.fixture(scope="module")
def outside(tmp_path_factory):
    return outside_runs(tmp_path_factory.mktemp("outside"), QUIET_SECONDS)


@pytest.mark.parametrize(("kind", "what"), OUTSIDE.items())
def test_wait_for_something_alive_outside_is_left_alone(outside, kind, what):
    script = outside[kind]
    assert not any(sample.is_hung for sample in script.samples), script.text
    waited = [sample.activity for sample in script.samples if sample.activity.outside]
    assert what in {activity.outside.kind for activity in waited}, script.text
    assert max(activity.limit_seconds or 0 for activity in waited) >= 1800


@pytest.mark.full
def test_minutes_outside_are_left_alone_with_usual_budgets(tmp_path):
    for kind, script in outside_runs(tmp_path, 150.0, Budgets).items():
        assert not any(sample.is_hung for sample in script.samples), f"{kind}: {script.text}"


def test_a_slow_server_is_seen_to_answer(healthy):
    silences = [sample.verdict.silent_seconds for sample in healthy["ask_server"].samples]
    assert Verdict.WAIT_NET in healthy["ask_server"].verdicts
    assert max(silence for silence in silences if silence is not None) < 10


def test_debugger_may_hold_a_process_forever(tmp_path):
    script = start(tmp_path / "attempt", "slow_steps", budgets=Short())
    time.sleep(2)
    held_until = time.monotonic() + 7
    attach(script.child.pid)
    try:
        while time.monotonic() < held_until:
            script.samples.append(script.watch.sample())
            time.sleep(0.5)
    finally:
        detach(script.child.pid)
        watch_all([script], seconds=1)
    assert not any(sample.is_hung for sample in script.samples), script.text
    assert Verdict.DEBUGGED in script.verdicts


@pytest.mark.full
def test_work_that_gets_hardly_any_processor_is_left_alone(tmp_path):
    script = watch_all([start(tmp_path / "attempt", "two_hogs", budgets=Short())], seconds=40)["two_hogs"]
    assert not any(sample.is_hung for sample in script.samples), script.text


@pytest.mark.full
def test_a_long_compilation_is_left_alone(tmp_path):
    script = watch_all([start(tmp_path / "attempt", "compile_model", budgets=Short())], seconds=90)["compile_model"]
    assert not any(sample.is_hung for sample in script.samples), script.text


@pytest.mark.full
@pytest.mark.parametrize(
    ("name", "verdict"),
    [("rank_locked", Verdict.DEADLOCK), ("rank_asleep", Verdict.SLEEPING), ("rank_busy", Verdict.MOVING)],
)
def test_rank_outside_the_collective_is_to_blame(tmp_path, name, verdict):
    torchrun = str(Path(sys.executable).parent / "torchrun")
    script = start(tmp_path / "attempt", name, budgets=Short(), command=(torchrun, "--nproc-per-node", "2"))
    sample = watch_all([script], seconds=600)[name].last
    assert sample.is_hung, script.log
    assert sample.verdict.verdict is verdict
    assert [one.rank for one in sample.verdict.ranks] == [1, 0]


needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="control groups and mounts need root")


@contextlib.contextmanager
def group_of(pid: int, kind: str):
    """Put a process into a control group of its own: version 1 where that has the controller, else version 2."""
    first, name = Path("/sys/fs/cgroup") / kind, f"holdfast-lab-{os.getpid()}"
    folder = (first if first.is_dir() else Path("/sys/fs/cgroup")) / name
    try:
        folder.mkdir()
        (folder / "cgroup.procs").write_text(str(pid))
    except OSError as error:
        pytest.skip(f"no control group {folder}: {error}")
    try:
        yield folder
    finally:
        (folder.parent / "cgroup.procs").write_text(str(pid))
        folder.rmdir()


def sample_for(script: Watched, seconds: float, is_seen: Callable[[], bool] = lambda: False) -> None:
    """Sample a script for a while, until it hangs or what is waited for is seen."""
    end = time.monotonic() + seconds
    while time.monotonic() < end and not (script.samples and (script.last.is_hung or is_seen())):
        script.samples.append(script.watch.sample())
        time.sleep(script.watch.next_sample_seconds)


@pytest.mark.full
@needs_root
def test_a_frozen_control_group_is_named(tmp_path):
    script = start(tmp_path / "attempt", "slow_steps")
    sample_for(script, 3)
    with group_of(script.child.pid, "freezer") as group:
        is_first = (group / "freezer.state").exists()
        switch, on, off = ("freezer.state", "FROZEN", "THAWED") if is_first else ("cgroup.freeze", "1", "0")
        (group / switch).write_text(on)
        try:
            sample_for(script, LONG_SECONDS)
        finally:
            (group / switch).write_text(off)
    watch_all([script], seconds=0)
    assert script.last.is_hung
    assert script.last.verdict.verdict is Verdict.STOPPED
    assert script.last.verdict.main.wait.target is WaitTarget.FROZEN_CGROUP


@pytest.mark.full
@needs_root
def test_work_throttled_to_a_hundredth_is_left_alone(tmp_path):
    script = start(tmp_path / "attempt", "busy_loop", budgets=Short())
    with group_of(script.child.pid, "cpu") as group:
        if (group / "cpu.max").exists():
            (group / "cpu.max").write_text("1000 100000")
        else:
            (group / "cpu.cfs_quota_us").write_text("1000")
        sample_for(script, 20)
        os.kill(script.child.pid, signal.SIGKILL)
        script.child.poll()
        time.sleep(0.5)
    watch_all([script], seconds=0)
    assert not any(sample.is_hung for sample in script.samples), script.text
    assert Verdict.STARVED in script.verdicts


@pytest.mark.full
@needs_root
def test_dead_disk_is_named_with_the_kernel_function(tmp_path):
    mount = tmp_path / "disk"
    mount.mkdir()
    script = start(tmp_path / "attempt", "dead_disk", mount)
    sample_for(script, LONG_SECONDS, lambda: script.last.verdict.verdict is Verdict.KERNEL or bool(script.log))
    watch_all([script], seconds=0)
    if "no " in script.log:
        pytest.skip(script.log.strip())
    assert script.last.verdict.verdict is Verdict.KERNEL
    assert "fuse" in script.last.verdict.main.wait.name
    assert not script.last.is_hung  # a disk has minutes


def test_non_python_command_is_watched(tmp_path):
    folder = tmp_path / "attempt"
    script = start(folder, "open_fifo", command=("sh", "-c", "mkfifo never; sleep 1; cat never | sort"))
    sample_for(script, LONG_SECONDS, lambda: script.last.verdict.verdict is Verdict.WAIT_INPUT)
    watch_all([script], seconds=0)
    assert script.last.verdict.verdict is Verdict.WAIT_INPUT
    wait = script.last.verdict.main.last_wait
    assert (wait.target, wait.name) == (WaitTarget.OPEN_FIFO, f"{folder}/never")
