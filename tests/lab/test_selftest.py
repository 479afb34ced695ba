"""`holdfast selftest` as a user calls it: here everything works; a broken library is found; nothing is left behind."""

import getpass
import importlib.util
import json
import os
import signal
import socket
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import psutil
import pytest

from holdfast.selftest.selftest_run import PARTS
from tests.lab.supervised import hear_ctrl_c

pytestmark = pytest.mark.lab
COMMAND = (sys.executable, "-m", "holdfast", "selftest")


def selftest(folder: Path, *options: str, code: int = 0, python: tuple[str, ...] = (), **variables: str) -> dict:
    command = [COMMAND[0], *python, *COMMAND[1:], "--json", *options]
    done = subprocess.run(
        command, cwd=folder, env={**os.environ, **variables}, capture_output=True, text=True, check=False, timeout=600
    )
    assert done.returncode == code, done.stdout + done.stderr
    return json.loads(done.stdout)


def parts_of(answer: dict) -> dict[str, dict]:
    return {part["name"]: part for part in answer["answers"]["parts"]}


def only(*names: str) -> list[str]:
    return [word for name in names for word in ("--only", name)]


def test_system_and_faults_work_here(tmp_path):
    answer = selftest(tmp_path, *only("machine", "tools", "processes", "heartbeat", "deadlock", "crash", "kill"))
    parts = parts_of(answer)
    assert answer["state"] == "ok"
    assert list(parts) == list(PARTS[:7])
    assert {part["state"] for part in parts.values()} == {"ok"}
    slugs = {name: parts[name]["facts"]["slug"] for name in ("deadlock", "crash", "kill")}
    assert slugs == {"deadlock": "script-deadlock", "crash": "segfault-other", "kill": "process-killed"}
    assert parts["heartbeat"]["facts"]["seen"] > 1
    with zipfile.ZipFile(tmp_path / answer["bundle"]["file"]) as packed:
        texts = {name: packed.read(name).decode() for name in packed.namelist()}
    assert {"selftest.json", "doctor.json", "machine.json"} <= texts.keys()
    assert {"runs/deadlock/attempts/01/diagnosis.json", "runs/crash/attempts/01/evidence.json"} <= texts.keys()
    hidden = {socket.gethostname(), str(Path.home()) + "/"} | ({getpass.getuser()} - {"root"})
    for name, text in texts.items():
        assert not [word for word in hidden if len(word) > 3 and word in text], name


@pytest.mark.full
def test_everything_works_here(tmp_path):
    parts = parts_of(selftest(tmp_path))
    assert list(parts) == list(PARTS)
    assert {part["state"] for part in parts.values()} == {"ok"}


def test_a_step_on_the_cpu_and_mlx_agree(tmp_path):
    (part,) = parts_of(selftest(tmp_path, *only("classify"))).values()
    facts = part["facts"]
    assert part["state"] == "ok"
    assert facts["cpu"]["steps"] > 20
    assert facts["cpu"]["values"] > 1000
    assert facts["cpu"]["last_bytes"] > 0
    if importlib.util.find_spec("mlx"):
        assert facts["mlx"]["loss"] == pytest.approx(facts["cpu"]["loss"], rel=1e-4)
        assert 0 < facts["mlx"]["gradient_off"] < 1e-3


def test_a_broken_torch_fails_its_parts_only(tmp_path):
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch/__init__.py").write_text("raise ImportError('libtorch_cpu.dylib: no such file')")
    answer = selftest(tmp_path, *only("heartbeat", "classify"), code=3, PYTHONPATH=str(tmp_path))
    states = {name: part["state"] for name, part in parts_of(answer).items()}
    assert answer["state"] == "failed"
    assert states == {"heartbeat": "ok", "classify": "failed"}
    assert "libtorch_cpu.dylib" in parts_of(answer)["classify"]["summary"]


def test_without_torch_training_steps_are_skipped(tmp_path):
    for name in ("click", "msgspec", "psutil", "holdfast"):
        (tmp_path / name).symlink_to(Path(importlib.util.find_spec(name).origin).parent)
    answer = selftest(tmp_path, *only("heartbeat", "classify"), python=("-S",), PYTHONPATH=str(tmp_path))
    states = {name: part["state"] for name, part in parts_of(answer).items()}
    assert answer["state"] == "ok"
    assert states == {"heartbeat": "ok", "classify": "skipped"}


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM], ids=lambda how: how.name)
def test_stopped_selftest_leaves_no_process(tmp_path, how):
    process = subprocess.Popen([*COMMAND, *only("kill")], cwd=tmp_path, preexec_fn=hear_ctrl_c)
    deadline = time.monotonic() + 120
    started: list[psutil.Process] = []
    while not any("kill.py" in " ".join(_command(one)) for one in started):
        assert time.monotonic() < deadline
        started = psutil.Process(process.pid).children(recursive=True)
        time.sleep(0.02)
    process.send_signal(how)
    assert process.wait(60) == 128 + how
    _, alive = psutil.wait_procs(started, timeout=60)
    assert alive == []
    assert not list(tmp_path.glob("*.zip"))


def _command(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []
