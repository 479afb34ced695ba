"""The spare, a process that waits to become the next attempt: as good as a new one, and never left behind."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from holdfast.core.heartbeat import read_beat
from holdfast.core.runfolder import BEAT, OUTPUT, model_folder
from holdfast.supervisor.child import Launch, start_child
from holdfast.supervisor.ending import end_tree
from holdfast.supervisor.members import attempt_of, find_members
from holdfast.supervisor.spare import Spare
from tests.lab.supervised import weights
from tests.tiny import tiny_attempt, tiny_bert, tiny_prepared

pytestmark = pytest.mark.lab
SECONDS = 120
ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}


@pytest.fixture(scope="module")
def parts(tmp_path_factory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("parts")
    return tiny_bert(folder / "model"), tiny_prepared(folder / "prepared")


@pytest.fixture
def spare(tmp_path):
    with Spare("holdfast.engine.spare_process", ("holdfast.engine",), tmp_path, ENVIRONMENT) as made:
        yield made


def launch(attempt: Path, spare: Spare | None, cwd: Path, **variables: str) -> Launch:
    command = (sys.executable, "-m", "holdfast.engine", str(attempt))
    return Launch(command, cwd, {**ENVIRONMENT, **variables}, attempt, spare=spare)


def wait_until(is_true) -> None:
    deadline = time.monotonic() + SECONDS
    while not is_true():
        assert time.monotonic() < deadline, "it never came"
        time.sleep(0.02)


def ready_pid(spare: Spare) -> int:
    spare.make()
    wait_until(lambda: spare.is_ready)
    assert spare._process
    return spare._process.pid


def finish(child) -> int:
    wait_until(lambda: child.poll() is not None)
    return child.poll()


def is_gone(pid: int) -> bool:
    return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def test_spare_process_trains_the_same_model(parts, spare, tmp_path):
    plain = tiny_attempt(tmp_path / "plain", *parts)
    assert finish(start_child(launch(plain, None, tmp_path))) == 0
    attempt = tiny_attempt(tmp_path / "spared", *parts, epochs=3)
    waiting = ready_pid(spare)
    child = start_child(launch(attempt, spare, tmp_path))
    assert child.pid == waiting
    wait_until(lambda: read_beat(attempt / BEAT))
    assert attempt_of(child.pid) == str(attempt)  # a process that leaves the session would be found by it
    assert os.getsid(child.pid) == child.pid
    if sys.platform == "linux":
        assert Path(f"/proc/{child.pid}/oom_score_adj").read_text() == Path("/proc/self/oom_score_adj").read_text()
    assert finish(child) == 0
    assert "LOAD REPORT" in (attempt / OUTPUT).read_text()
    assert weights(model_folder(tmp_path / "spared")) == weights(model_folder(tmp_path / "plain"))


def test_spare_process_signal_is_known_and_tree_ends(parts, spare, tmp_path):
    attempt = tiny_attempt(tmp_path / "run", *parts, epochs=500)
    ready_pid(spare)
    child = start_child(launch(attempt, spare, tmp_path))
    wait_until(lambda: (beat := read_beat(attempt / BEAT)) and beat.step > 3)
    os.kill(child.pid, signal.SIGSEGV)
    assert finish(child) == -signal.SIGSEGV
    assert "Segmentation fault" in (attempt / OUTPUT).read_text()
    ready_pid(spare)
    again = tiny_attempt(tmp_path / "run", *parts, number=2, epochs=500)
    child = start_child(launch(again, spare, tmp_path))
    wait_until(lambda: (beat := read_beat(again / BEAT)) and beat.phase == "step")
    end_tree(again, child, 0)
    assert finish(child) == -signal.SIGKILL
    assert not find_members(again, child.identity)


@pytest.mark.parametrize("other", ["environment", "folder", "program"])
def test_different_attempt_gets_a_new_process(parts, spare, tmp_path, other):
    attempt = tiny_attempt(tmp_path / "run", *parts, epochs=1)
    waiting = ready_pid(spare)
    asked = launch(attempt, spare, tmp_path)
    if other == "environment":
        asked = launch(attempt, spare, tmp_path, OMP_NUM_THREADS="1")
    elif other == "folder":
        asked = launch(attempt, spare, attempt)
    else:
        asked = Launch((sys.executable, "-c", "print(1)"), tmp_path, ENVIRONMENT, attempt, spare=spare)
    child = start_child(asked)
    assert child.pid != waiting
    assert is_gone(waiting)
    assert finish(child) == 0


def test_next_fallback_applies_to_the_current_plan(parts, spare, tmp_path):
    first = tiny_attempt(tmp_path / "run", *parts, epochs=1)
    assert finish(start_child(launch(first, spare, tmp_path, OMP_NUM_THREADS="1"))) == 0
    waiting = ready_pid(spare)
    second = tiny_attempt(tmp_path / "run", *parts, number=2, epochs=1)
    child = start_child(launch(second, spare, tmp_path, OMP_NUM_THREADS="1"))
    assert child.pid == waiting
    assert finish(child) == 0


def test_dead_waiter_is_not_missed(parts, spare, tmp_path):
    attempt = tiny_attempt(tmp_path / "run", *parts, epochs=1)
    waiting = ready_pid(spare)
    os.kill(waiting, signal.SIGKILL)
    child = start_child(launch(attempt, spare, tmp_path))
    assert child.pid != waiting
    assert finish(child) == 0


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_spare_process_ends_with_its_supervisor(tmp_path, number):
    code = (
        "import os, pathlib, sys, time\n"
        "from holdfast.supervisor.spare import Spare\n"
        "spare = Spare('holdfast.engine.spare_process', (), pathlib.Path(sys.argv[1]), dict(os.environ))\n"
        "spare.make()\n"
        "print(spare._process.pid, flush=True)\n"
        "time.sleep(600)\n"
    )
    supervisor = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert supervisor.stdout
    waiting = int(supervisor.stdout.readline())
    assert not is_gone(waiting)
    supervisor.send_signal(number)
    supervisor.communicate()
    wait_until(lambda: is_gone(waiting))
