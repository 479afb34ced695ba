"""The preload in every kind of process: where it arms, what it leaves alone, and that it never breaks a script."""

import os
import signal
import subprocess
import sys
import time

import pytest

from holdfast.core.events import Orphaned, RankStarted
from tests.lab.preloaded import PRELOAD, SCRIPTS, Preloaded, at_step

pytestmark = pytest.mark.lab
LOOP = SCRIPTS / "plain_loop.py"


def run_python(*words: str, **variables: str) -> str:
    known = os.environ | {"PYTHONPATH": str(PRELOAD)} | variables
    done = subprocess.run([sys.executable, *words], env=known, capture_output=True, text=True, timeout=120, check=True)
    assert not done.stderr
    return done.stdout


def test_preload_is_off_without_an_attempt():
    assert run_python("-c", "import sys; print('holdfast_preload' in sys.modules)") == "False\n"


@pytest.mark.parametrize("attempt", ["/proc/none/attempt", ""])
def test_unwritable_folder_does_not_fail_the_run(attempt):
    assert run_python("-c", "print(1)", HOLDFAST_ATTEMPT=attempt) == "1\n"


def test_broken_settings_are_reported_and_script_runs(tmp_path):
    (tmp_path / "settings.json").write_text("{")
    assert run_python("-c", "print(1)", HOLDFAST_ATTEMPT=str(tmp_path)) == "1\n"
    assert "settings.json" in (tmp_path / "events.jsonl").read_text()


def test_existing_sitecustomize_still_runs(tmp_path):
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    (theirs / "sitecustomize.py").write_text("print('theirs', __name__)\nMARK = 3\n")
    path = os.pathsep.join((str(PRELOAD), str(theirs)))
    code = "import sitecustomize, sys; print(sitecustomize.MARK, 'holdfast_preload' in sys.modules)"
    out = run_python("-c", code, PYTHONPATH=path, HOLDFAST_ATTEMPT=str(tmp_path))
    assert out == "theirs sitecustomize\n3 True\n"


def test_preload_works_in_a_venv_and_with_m(tmp_path):
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv"], check=True)
    (tmp_path / "pack").mkdir()
    (tmp_path / "pack" / "__main__.py").write_text("import sys; print('holdfast_preload' in sys.modules, sys.prefix)")
    attempt = Preloaded(tmp_path, 1, tmp_path / "venv/bin/python", "-m", "pack").finish()
    assert attempt.output.read_text().strip() == f"True {tmp_path / 'venv'}"
    assert len(attempt.beats()) == 1


def test_children_have_their_own_heartbeats_and_stacks(tmp_path):
    script = tmp_path / "children.py"
    script.write_text(
        "import multiprocessing, os, signal, time\n"
        "def work(ready):\n"
        "    import holdfast_preload.beat_page as beat\n"
        "    beat.BEAT.stepped()\n"
        "    os.kill(os.getpid(), signal.SIGUSR1)\n"
        "if __name__ == '__main__':\n"
        "    for method in ('fork', 'spawn', 'forkserver'):\n"
        "        child = multiprocessing.get_context(method).Process(target=work, args=(1,))\n"
        "        child.start(); child.join(); print(child.pid, child.exitcode)\n"
    )
    attempt = Preloaded(tmp_path, 1, script).finish()
    for line in attempt.output.read_text().splitlines():
        pid, code = line.split()
        assert code == "0"
        assert "in work" in (attempt.folder / f"stacks/python-{pid}.txt").read_text()
        assert (attempt.folder / f"beats/{pid}").stat().st_size == 4096


def test_segfault_in_a_loader_worker_leaves_its_stack(tmp_path):
    attempt = Preloaded(tmp_path, 1, LOOP, "out.pt", "workers=1", "crash_at=20").finish(code=1)
    stacks = [path.read_text() for path in (attempt.folder / "stacks").glob("python-*.txt")]
    (shown,) = [text for text in stacks if "Segmentation fault" in text]
    assert "__getitem__" in shown
    assert "Unexpected segmentation fault encountered in worker" in attempt.output.read_text(errors="replace")


def test_clean_workers_leave_no_files(tmp_path):
    attempt = Preloaded(tmp_path, 1, LOOP, "out.pt", "workers=2").finish()
    assert len(list((attempt.folder / "stacks").iterdir())) == 1
    assert len(attempt.beats()) == 1


@pytest.mark.full
def test_every_rank_of_torchrun_beats(tmp_path):
    launcher = ("-m", "torch.distributed.run", "--nproc-per-node", "2")
    attempt = Preloaded(tmp_path, 1, *launcher, SCRIPTS / "ddp_loop.py").finish()
    assert sorted(beat.step for beat in attempt.beats())[-2:] == [9, 9]
    assert {event.rank for event in attempt.events(RankStarted)} == {0, 1}


@pytest.mark.full
def test_preload_works_under_accelerate_launch(tmp_path):
    attempt = Preloaded(tmp_path, 1, "-m", "accelerate.commands.launch", "--cpu", LOOP, "out.pt").finish()
    assert attempt.step() == 12


def test_a_script_ends_when_its_supervisor_is_gone(tmp_path):
    with subprocess.Popen(["sleep", "600"]) as supervisor:
        attempt = Preloaded(tmp_path, 1, LOOP, "out.pt", "steps=100000", supervisor=supervisor.pid)
        attempt.wait_until(at_step(5))
        supervisor.kill()
    assert attempt.process.wait(timeout=30) == -signal.SIGTERM
    assert attempt.events(Orphaned)


def test_stuck_script_dumps_its_stack_on_request(tmp_path):
    script = tmp_path / "stuck.py"
    script.write_text("import threading\nL = threading.Lock()\ndef stuck():\n    L.acquire(); L.acquire()\nstuck()\n")
    attempt = Preloaded(tmp_path, 1, script)
    stacks = attempt.folder / "stacks" / f"python-{attempt.process.pid}.txt"
    attempt.wait_until(lambda _: stacks.exists())
    time.sleep(0.5)
    attempt.process.send_signal(signal.SIGUSR1)
    attempt.wait_until(lambda _: "stuck.py" in stacks.read_text()).kill()
    assert "in stuck" in stacks.read_text()
