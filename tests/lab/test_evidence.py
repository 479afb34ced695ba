"""What is seen of real faults: each is named right, with its proof in the one sentence, and nothing is left running."""

import ctypes
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from holdfast.core.evidence import Diagnosis
from holdfast.core.heartbeat import read_beat
from holdfast.core.observations import KilledExternally, OomKillerOff, Verdict, WaitTarget
from holdfast.core.records import Outcome
from holdfast.core.runfolder import BEAT, OUTPUT
from holdfast.runs.command import PRELOAD
from holdfast.supervisor import dumps
from holdfast.supervisor.attempt import StopRequest, run_attempt
from holdfast.supervisor.budgets import Budgets
from holdfast.supervisor.child import Launch, start_child
from holdfast.supervisor.collect import read_attempt_evidence
from holdfast.supervisor.dumps import find_spy
from holdfast.supervisor.ending import end_tree
from holdfast.supervisor.members import find_member, find_members, read_root

pytestmark = pytest.mark.lab
FAULTS = Path(__file__).parent / "faults"
LIMITS = {Path("/sys/fs/cgroup/memory"): "memory.limit_in_bytes", Path("/sys/fs/cgroup"): "memory.max"}
linux_only = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc, which only Linux has")


class ImpatientWithDisks(Budgets):
    """A disk is given seconds, so that a test need not wait for the minutes of a user."""

    def kernel_seconds(self, phase: str) -> float:
        return 8.0

    def outside_seconds(self) -> float:
        return 8.0


def attempt(
    folder: Path, *command: object, on_pid=None, budgets: Budgets | None = None, **variables: str
) -> tuple[Outcome, Diagnosis]:
    """Run one attempt of a command, or of a fault's script; `on_pid` is called with its pid once it is at work."""
    words = tuple(map(str, command))
    if words[0].endswith(".py"):
        words = (sys.executable, str(FAULTS / words[0]), *words[1:])
    path = os.pathsep.join(filter(None, [str(PRELOAD), os.environ.get("PYTHONPATH", "")]))
    environment = {**os.environ, "PYTHONPATH": path, **variables}
    launch = Launch(words, folder.parent, environment, folder)
    folder.mkdir(parents=True)
    (folder / "settings.json").write_text("{}")
    if on_pid:
        threading.Thread(target=lambda: on_pid(_working_pid(folder)), daemon=True).start()
    outcome, diagnosis = run_attempt(launch, budgets or Budgets(), lambda event: None, StopRequest())
    left = [member for member in find_members(folder, read_root(folder)) if not member.is_gone]
    assert not left
    return outcome, diagnosis


def _working_pid(folder: Path) -> int:
    while not ((beat := read_beat(folder / BEAT)) and beat.step >= 1 and (root := read_root(folder))):
        time.sleep(0.05)
    return root.pid


@linux_only
@pytest.mark.parametrize(
    ("script", "slug", "is_proof"),
    [
        ("fork_after_openmp.py", "openmp-fork", lambda seen: seen.caller.startswith("libgomp") and seen.forked_from),
        ("worker_mutex.py", "dataloader-deadlock", lambda seen: seen.parent_pid and seen.how == "orphaned_by_fork"),
        pytest.param(
            *("worker_tokenizer.py", "tokenizers-fork", lambda seen: "rayon_core::latch" in seen.text),
            marks=pytest.mark.full,
        ),
        pytest.param(
            *("loader_lock.py", "dataloader-deadlock", lambda seen: seen.main.stuck.command == "pt_data_worker"),
            marks=pytest.mark.full,
        ),
        ("own_mutex.py", "thread-deadlock", lambda seen: seen.how == "own"),
        pytest.param(
            "abba_deadlock.py", "script-deadlock", lambda seen: seen.how == "waits_for_own_lock", marks=pytest.mark.full
        ),
        ("stopped.py", "process-stopped", lambda seen: seen.verdict is Verdict.STOPPED),
        pytest.param(
            *("crash_loop.py", "dataloader-spawn-guard", lambda seen: "start a new process before the" in seen.text),
            marks=pytest.mark.full,
        ),
    ],
)
def test_a_hang_is_named_with_its_proof(tmp_path, script, slug, is_proof):
    if slug == "tokenizers-fork" and not find_spy():
        pytest.skip("py-spy is not installed, and only it names rayon")
    outcome, diagnosis = attempt(tmp_path / "01", script)
    assert outcome.outcome == "hung"
    assert (diagnosis.slug, diagnosis.confidence) == (slug, "proven")
    assert is_proof(diagnosis.because[0])
    assert outcome.cause.exit.is_hang
    assert outcome.cause.phase


@linux_only
@pytest.mark.parametrize(
    ("script", "slug", "target"),
    [
        pytest.param("busy_loop.py", "busy-livelock", None, marks=pytest.mark.full),
        ("open_fifo.py", "input-blocked", WaitTarget.OPEN_FIFO),
    ],
)
def test_given_up_wait_is_named(tmp_path, script, slug, target):
    fifo = tmp_path / "feed"
    os.mkfifo(fifo)
    outcome, diagnosis = attempt(tmp_path / "01", script, fifo, budgets=Budgets(6))
    assert outcome.outcome == "hung"
    assert (diagnosis.slug, diagnosis.confidence) == (slug, "proven")
    assert outcome.cause.given_up.reason == "step_timeout"
    main = outcome.cause.verdict.main
    assert (main.last_wait.target if main else None) is target


@linux_only
@pytest.mark.parametrize("script", ["ask_hub.py", pytest.param("ask_server.py", marks=pytest.mark.full)])
def test_unresponsive_server_is_named_with_its_address(tmp_path, script):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        endpoint = f"http://127.0.0.1:{port}"
        outcome, diagnosis = attempt(tmp_path / "01", script, port, budgets=Budgets(8), HF_ENDPOINT=endpoint)
    assert diagnosis.slug == ("hub-offline" if script == "ask_hub.py" else "network-stalled")
    assert outcome.cause.verdict.main.last_wait.name == f"127.0.0.1:{port}"


@linux_only
def test_a_worker_that_crashes_is_named_with_its_signal(tmp_path):
    _, diagnosis = attempt(tmp_path / "01", "worker_segfault.py")
    assert (diagnosis.slug, diagnosis.confidence) == ("dataloader-worker-killed", "proven")
    assert diagnosis.because[0].is_loader_worker
    assert diagnosis.because[0].status.signal == "SIGSEGV"


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_kill_from_outside_is_not_taken_for_memory(tmp_path, number):
    outcome, diagnosis = attempt(tmp_path / "01", "slow_steps.py", on_pid=lambda pid: os.kill(pid, number))
    assert outcome.exit_code == -number
    if sys.platform == "linux":
        assert diagnosis.slug == "process-killed"
        assert diagnosis.because[0] == KilledExternally(signal=number.name)


def test_prompt_for_input_fails_immediately(tmp_path):
    outcome, diagnosis = attempt(tmp_path / "01", "asks_user.py")
    assert diagnosis.slug == "input-empty"
    assert outcome.outcome == "died"


@pytest.fixture
def small_group():
    """A control group with 250 MB of memory; skipped where none may be made."""
    for top, limit in (
        (Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes"),
        (Path("/sys/fs/cgroup"), "memory.max"),
    ):
        group = top / f"holdfast-lab-{os.getpid()}"
        try:
            group.mkdir()
            (group / limit).write_text(str(250_000_000))
        except OSError:
            continue
        break
    else:
        pytest.skip("this machine lets us make no control group with a memory limit (needs root)")
    yield group
    for _ in range(100):
        try:
            group.rmdir()
            return
        except OSError:
            time.sleep(0.05)


def test_a_kernel_kill_for_memory_is_proven_by_its_counter(tmp_path, small_group):
    enter = f"echo $$ > {small_group}/cgroup.procs; exec {sys.executable} {FAULTS}/memory_leak.py"
    outcome, diagnosis = attempt(tmp_path / "01", "sh", "-c", enter)
    assert outcome.exit_code == -signal.SIGKILL
    assert (diagnosis.slug, diagnosis.confidence) == ("host-oom", "proven")
    assert abs(outcome.cause.memory_kill.limit_bytes - 250_000_000) < 4096  # the kernel rounds to pages
    assert outcome.cause.memory_kill.kills == 1
    assert outcome.cause.resident_bytes


@pytest.mark.full
def test_oom_killed_worker_differs_from_crashed_worker(tmp_path, small_group):
    (small_group / LIMITS[small_group.parent]).write_text(str(600_000_000))
    enter = f"echo $$ > {small_group}/cgroup.procs; exec {sys.executable} {FAULTS}/worker_leak.py"
    outcome, diagnosis = attempt(tmp_path / "01", "sh", "-c", enter)
    assert (diagnosis.slug, diagnosis.confidence) == ("host-oom", "proven")
    assert abs(outcome.cause.memory_kill.limit_bytes - 600_000_000) < 4096
    assert outcome.cause.memory_kill.kills == 1


@pytest.mark.full
def test_oom_with_disabled_killer_is_a_memory_hang(tmp_path, small_group):
    try:
        (small_group / "memory.oom_control").write_text("1")
    except OSError:
        pytest.skip("only version 1 of control groups can switch the killer off")
    enter = f"echo $$ > {small_group}/cgroup.procs; exec {sys.executable} {FAULTS}/memory_leak.py"
    outcome, diagnosis = attempt(tmp_path / "01", "sh", "-c", enter, budgets=Budgets(6))
    assert (outcome.outcome, diagnosis.slug, diagnosis.confidence) == ("hung", "host-oom", "proven")
    assert isinstance(outcome.cause.proof, OomKillerOff)


@pytest.mark.full
@linux_only
@pytest.mark.parametrize(
    ("how", "slug"),
    [
        ("SIGKILL", "process-killed"),
        ("SIGSEGV", "segfault-other"),
        ("quietly", "rank-lost"),
        ("SIGSTOP", "process-stopped"),
    ],
)
def test_first_lost_rank_is_named_not_its_victim(tmp_path, how, slug):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    torchrun = (sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", port)
    outcome, diagnosis = attempt(tmp_path / "01", *torchrun, FAULTS / "rank_leaves.py", how)
    assert diagnosis.slug == slug
    first = [one.rank for one in outcome.cause.ranks] or [getattr(diagnosis.because[0], "rank", None)]
    assert first[0] == 1


@pytest.fixture
def dead_disk(tmp_path):
    """A mount whose server never answers; skipped where none may be made."""
    disk = tmp_path / "dead"
    disk.mkdir()
    try:
        server = os.open("/dev/fuse", os.O_RDWR)
    except OSError as error:
        pytest.skip(f"this machine lets us make no mount of our own: {error}")
    options = f"fd={server},rootmode=40000,user_id={os.getuid()},group_id={os.getgid()}".encode()
    if ctypes.CDLL(None).mount(b"dead", os.fsencode(disk), b"fuse", 0, options):
        os.close(server)
        pytest.skip("this machine lets us mount nothing (needs root)")
    yield disk
    ctypes.CDLL(None).umount2(os.fsencode(disk), 2)  # MNT_DETACH
    os.close(server)


@pytest.mark.full
def test_unresponsive_disk_is_named_by_the_kernel_wait(tmp_path, dead_disk):
    outcome, diagnosis = attempt(tmp_path / "01", "save_to_disk.py", dead_disk, budgets=ImpatientWithDisks())
    assert (outcome.outcome, diagnosis.slug, diagnosis.confidence) == ("hung", "disk-stalled", "proven")
    assert "fuse" in outcome.cause.verdict.main.wait.name


@pytest.fixture
def small_disk(tmp_path):
    """A disk of 10 MB; skipped where none may be mounted."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = shutil.which("mount") and subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=10m", "tmpfs", str(disk)], capture_output=True, check=False
    )
    if not mounted or mounted.returncode:
        pytest.skip("this machine lets us mount no small disk (needs root)")
    yield disk
    subprocess.run(["umount", "-l", str(disk)], check=True)


def test_full_disk_is_named_by_its_free_space(tmp_path, small_disk):
    _, diagnosis = attempt(tmp_path / "01", "save_to_disk.py", small_disk)
    assert (diagnosis.slug, diagnosis.confidence) == ("disk-full", "proven")
    space = diagnosis.because[0]
    assert (space.folder, space.free_bytes) == (str(small_disk), 0)


def test_full_run_disk_is_still_diagnosed(tmp_path, small_disk):
    _, diagnosis = attempt(small_disk / "01", "save_to_disk.py", small_disk)
    assert (diagnosis.slug, diagnosis.confidence) == ("disk-full", "proven")
    assert (small_disk / "01" / "diagnosis.json").stat().st_size > 0


def test_stacks_of_a_stopped_process_are_taken_without_touching_it(tmp_path):
    if not find_spy():
        pytest.skip("py-spy is not installed")
    attempt(tmp_path / "01", "stopped.py")
    frames = [frame.function for stack in read_attempt_evidence(tmp_path / "01").stacks for frame in stack.frames]
    assert "<module>" in frames


def test_without_py_spy_processes_write_their_own_stacks(tmp_path, monkeypatch):
    monkeypatch.setattr(dumps, "find_spy", lambda: None)
    script = """
import os, subprocess, sys, time
bare = subprocess.Popen(['sleep', '300'])  # knows nothing of our signal and would die of it
print('ready', bare.pid, flush=True)
time.sleep(300)
"""
    folder = tmp_path / "01"
    folder.mkdir()
    (folder / "settings.json").write_text("{}")
    path = os.pathsep.join(filter(None, [str(PRELOAD), os.environ.get("PYTHONPATH", "")]))
    command = (sys.executable, "-c", script)
    child = start_child(Launch(command, tmp_path, {**os.environ, "PYTHONPATH": path}, folder))
    try:
        while "ready" not in (folder / OUTPUT).read_text():
            time.sleep(0.05)
        dumps.dump_stacks(folder, child.identity, native=True)
        assert "most recent call first" in (folder / "stacks" / f"python-{child.pid}.txt").read_text()
        assert not find_member(int((folder / OUTPUT).read_text().split()[1])).is_gone
    finally:
        end_tree(folder, child, 0)


def test_unknown_cause_lists_ruled_out_causes(tmp_path):
    outcome, diagnosis = attempt(tmp_path / "01", sys.executable, "-c", "import sys; sys.exit(7)")
    assert diagnosis.slug == "unknown"
    assert "full_disk" in outcome.cause.ruled_out
    assert (tmp_path / "01" / OUTPUT).read_text() == ""
