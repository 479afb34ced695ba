"""The doctor with real children: healthy, hung, crashed, wrong, and with no torch at all."""

import json
import os
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import click
import msgspec
import psutil
import pytest

import holdfast
from holdfast.machine import trials

pytestmark = pytest.mark.lab

RUN = "import sys; sys.argv[0] = 'holdfast'; from holdfast.cli import main; main()"
ONLY_IN_CHILD = "import sys\nif any('device_trial' in word for word in sys.orig_argv):\n"


@pytest.fixture
def fault(tmp_path, monkeypatch):
    """Write a sitecustomize that misbehaves in the trial's child only."""

    def plant(code: str, guard: str = ONLY_IN_CHILD) -> dict[str, str]:
        text = textwrap.dedent(code)
        (tmp_path / "sitecustomize.py").write_text(guard + textwrap.indent(text, "    ") if guard else text)
        monkeypatch.setenv("PYTHONPATH", str(tmp_path))
        return dict(os.environ)

    return plant


def doctor(*arguments: str, env=None, python=sys.executable) -> subprocess.CompletedProcess:
    return subprocess.run(
        [python, "-c", RUN, "doctor", *arguments], capture_output=True, text=True, env=env, timeout=300
    )


def test_a_healthy_machine_answers_everything_and_never_imports_torch_itself(fault):
    env = fault(
        """
        import sys
        class NoTorch:
            def find_spec(self, name, path=None, target=None):
                if name == "torch" and not any("device_trial" in word for word in sys.orig_argv):
                    raise SystemExit("the doctor imported torch")
        sys.meta_path.insert(0, NoTorch())
        """,
        guard="",
    )
    done = doctor("--json", env=env)
    value = json.loads(done.stdout)
    assert done.returncode == 0, done.stderr
    assert list(value) == ["facts", "findings", "unanswered"]
    assert value["facts"]["trials"][0]["outcome"] == "agrees"
    assert value["facts"]["torch"]["version"] == value["facts"]["distributions"]["torch"]
    assert value["unanswered"] == []


def test_hanging_child_is_killed_at_the_limit(fault):
    env = fault("import time; time.sleep(600)")
    started = time.monotonic()
    done = doctor("--device-timeout", "2", env=env)
    assert time.monotonic() - started < 20
    assert done.returncode == 3
    assert "[x]" in done.stdout
    assert "within 2 s" in done.stdout
    commands = [" ".join(process.info["cmdline"] or []) for process in psutil.process_iter(["cmdline"])]
    assert not [command for command in commands if "device_trial" in command and command.endswith(" 2.0")]


def test_hang_while_loading_torch_is_located(fault):
    env = fault(
        """
        import sys, time
        class Stuck:
            def find_spec(self, name, path=None, target=None):
                if name == "torch":
                    time.sleep(600)
        sys.meta_path.insert(0, Stuck())
        """
    )
    done = doctor("--json", "--device-timeout", "2", env=env)
    (trial,) = json.loads(done.stdout)["facts"]["trials"]
    assert trial["outcome"] == "hang"
    assert "in find_spec (" in trial["detail"]


def test_a_torch_that_cannot_be_imported_is_an_answer(fault):
    done = doctor("--json", env=fault("import sys; sys.modules['torch'] = None"))
    (trial,) = json.loads(done.stdout)["facts"]["trials"]
    assert (trial["outcome"], done.returncode) == ("error", 3)
    assert "import of torch halted" in trial["detail"]


def test_a_child_that_crashes_is_an_answer(fault):
    env = fault("import ctypes; ctypes.string_at(0)")
    done = doctor("--json", env=env)
    (trial,) = json.loads(done.stdout)["facts"]["trials"]
    assert (trial["outcome"], trial["signal"], done.returncode) == ("crash", "SIGSEGV", 3)


LEAKING_ATTENTION = """
right = torch.nn.functional.scaled_dot_product_attention
def leaking(query, key, value, is_causal):
    return right(query, key, value, is_causal=is_causal and query.dtype != torch.bfloat16)
torch.nn.functional.scaled_dot_product_attention = leaking
"""
FROZEN_OPTIMIZER = """
right = torch.optim.AdamW.step
def frozen(self, closure=None):
    if self.param_groups[0]["params"][0].dtype == torch.float64:
        right(self)
torch.optim.AdamW.step = frozen
"""
WRONG_GRADIENT = """
right = torch.nn.functional.linear
def wrong(input, weight, bias=None):
    if input.dtype == torch.float32 and not weight.is_contiguous():
        return right(input, weight.roll(1, 0), bias)
    return right(input, weight, bias)
torch.nn.functional.linear = wrong
"""


@pytest.mark.parametrize(
    ("patch", "word"),
    [
        (LEAKING_ATTENTION, "causal attention in bfloat16 is off by"),
        (FROZEN_OPTIMIZER, "after AdamW the loss moved by +0.0000, but by -"),
        (WRONG_GRADIENT, "the gradient of outer_transposed is off by"),
    ],
    ids=["attention-sees-the-future", "weights-stay-frozen", "transposed-weight-misread"],
)
def test_wrong_device_results_are_reported(patch, word):
    child = Path(trials.__file__).with_name("device_trial.py")
    code = f"""
import runpy, sys, torch
{patch}
sys.argv = ["device_trial.py", "cpu", "60"]
runpy.run_path({str(child)!r}, run_name="__main__")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    outcome = next(line for line in trials.read_lines(done.stdout) if "outcome" in line)
    assert outcome["outcome"] == "differs", done.stderr
    assert word in outcome["detail"]


def test_python_without_torch_is_a_fact(tmp_path):
    for package in (holdfast, click, msgspec, psutil):
        folder = Path(package.__file__).parent
        (tmp_path / folder.name).symlink_to(folder)
    python = getattr(sys, "_base_executable", sys.executable)
    env = {"PYTHONPATH": str(tmp_path), "PATH": os.environ["PATH"], "HOME": str(tmp_path)}
    done = subprocess.run(
        [python, "-S", "-c", RUN, "doctor"], capture_output=True, text=True, env=env, timeout=300, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("[ok] torch")]
    assert "not installed" in line


def test_the_first_line_does_not_wait_for_torch(fault):
    env = fault("import time; time.sleep(600)")
    started = time.monotonic()
    process = subprocess.Popen(
        [sys.executable, "-c", RUN, "doctor", "--device-timeout", "3"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=env,
    )
    assert process.stdout
    first = process.stdout.readline()
    seconds = time.monotonic() - started
    process.communicate(timeout=300)
    assert first.startswith("holdfast ")
    assert seconds < 1.5  # 0.3 s on a quiet machine
