"""`holdfast run` with other commands: hand-written loops, bad requests, Ctrl-C, detached, killed supervisors."""

import json
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from holdfast.core.event_log import find_last, read_events
from holdfast.core.events import ProcessesEnded, ResumeArgsChosen, SettingsRemembered, TrainingStopped
from holdfast.core.runfolder import EVENTS, OUTPUT
from holdfast.core.text import human_seconds
from holdfast.runs.run_path import is_run
from holdfast.runs.state import read_state
from holdfast.supervisor.members import find_members
from tests.lab.supervised import SCRIPTS, finish, resume, start, supervise, wait_for_step, weights

pytestmark = pytest.mark.lab
LOOP = (sys.executable, SCRIPTS / "own_loop.py")
RESUMES = ("--resume-args=--resume",)


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory) -> str:
    folder = tmp_path_factory.mktemp("unbroken")
    done = supervise(folder / "run", *LOOP, folder / "out", PAUSE="0")
    assert done.exit_code == 0, done.output
    return weights(folder / "out")


@pytest.mark.parametrize(
    "fault", ["segfault", "stop", *(pytest.param(name, marks=pytest.mark.full) for name in ("kill", "sleep"))]
)
def test_loop_with_own_checkpoints_has_identical_weights(tmp_path, unbroken, lab_row, fault):
    options = (*RESUMES, "--step-timeout", "15")
    done = supervise(tmp_path / "run", *LOOP, tmp_path / "out", options=options, FAULT=fault)
    first = done.outcomes[0]
    assert done.exit_code == 0, done.output
    same = weights(tmp_path / "out") == unbroken
    lab_row(
        fault=fault,
        phase="step",
        task="own loop",
        noticed_after_seconds=first.noticed_after_seconds,
        named=first.diagnosis,
        finished=True,
        identical=same,
    )
    assert first.step_reached == 91
    assert first.outcome == ("hung" if fault in ("stop", "sleep") else "died")
    assert len(done.outcomes) == 2
    assert same


@pytest.mark.parametrize(("fault_at", "checkpoint"), [("10", ""), ("30", "checkpoint.pt")])
def test_resume_args_wait_for_the_first_checkpoint(tmp_path, unbroken, fault_at, checkpoint):
    faults = {"FAULT": "kill", "FAULT_AT": fault_at, "STRICT": "1"}  # the script fails if it has nothing to resume from
    done = supervise(tmp_path / "run", *LOOP, tmp_path / "out", options=RESUMES, **faults)
    assert done.exit_code == 0, done.output
    assert [one.outcome for one in done.outcomes] == ["died", "finished"]
    chosen = find_last(done.attempt(2) / EVENTS, ResumeArgsChosen)
    assert chosen
    assert (chosen.arguments, Path(chosen.checkpoint).name) == (("--resume",), checkpoint)
    assert ("resumed at 20" in done.log(2)) == bool(checkpoint)
    assert weights(tmp_path / "out") == unbroken


def test_run_survives_supervisor_kills_at_random_moments(tmp_path, unbroken, lab_row):
    run, draws = tmp_path / "run", random.Random(4)
    process = start(run, *LOOP, tmp_path / "out", options=RESUMES, PAUSE="0.02")
    for attempt in (1, 2, 3):
        wait_for_step(run, draws.randrange(25, 60), attempt)
        process.kill()
        process.wait()
        deadline = time.monotonic() + 30
        while find_members(run / "attempts" / f"{attempt:02d}", None):
            assert time.monotonic() < deadline, "the child outlived its supervisor"
            time.sleep(0.05)
        process = subprocess.Popen(
            [sys.executable, "-m", "holdfast", "resume", str(run)],
            stdout=(tmp_path / "run.out").open("ab"),
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    done = finish(process, run)
    assert done.exit_code == 0, done.output
    same = weights(tmp_path / "out") == unbroken
    lab_row(
        fault="supervisor killed, three times",
        phase="step",
        task="own loop",
        noticed_after_seconds=None,
        named="interrupted",
        finished=True,
        identical=same,
    )
    assert [one.outcome for one in done.outcomes] == ["interrupted"] * 3 + ["finished"]
    assert same


def test_resume_ends_a_child_that_outlived_its_supervisor(tmp_path):
    run, deaf = tmp_path / "run", "trap '' TERM HUP; test -e here && exit 0; touch here; while :; do sleep 1; done"
    process = start(run, "sh", "-c", deaf)
    deadline = time.monotonic() + 60
    while not (tmp_path / "here").exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.kill()
    process.wait()
    left = {member.pid for member in find_members(run / "attempts" / "01", None)}
    assert left
    done = resume(run)
    assert done.exit_code == 0, done.output
    ended = find_last(run / EVENTS, ProcessesEnded)
    assert ended
    assert left & {process.pid for process in ended.processes}
    assert not find_members(run / "attempts" / "01", None)


def test_a_second_supervisor_is_refused(tmp_path):
    run = tmp_path / "run"
    process = start(run, *LOOP, tmp_path / "out", PAUSE="0.05")
    wait_for_step(run, 1)
    second = subprocess.run([sys.executable, "-m", "holdfast", "resume", str(run)], capture_output=True, text=True)
    assert second.returncode == 2
    stopped = subprocess.run([sys.executable, "-m", "holdfast", "stop", str(run)], capture_output=True, text=True)
    assert "stopped" in stopped.stdout
    done = finish(process, run)
    assert done.exit_code == 143
    assert done.result["state"] == "stopped"
    assert not find_members(run / "attempts" / "01", None)


def test_sleep_before_first_step_is_shown_with_its_limit(tmp_path):
    run = tmp_path / "run"
    process = start(run, sys.executable, "-c", "import time; time.sleep(600)")
    deadline = time.monotonic() + 120
    while not (doing := _activity(run)) or not doing.outside:
        assert time.monotonic() < deadline, doing
        time.sleep(0.5)
    shown = _status_text(run)
    process.send_signal(signal.SIGTERM)
    finish(process, run)
    assert (doing.outside.kind, doing.limit_seconds) == ("sleep", 1800)
    assert human_seconds(doing.limit_seconds) in shown


def test_ctrl_c_reaches_a_script_that_saves_on_it(tmp_path):
    run, script, saved = tmp_path / "run", tmp_path / "script.py", tmp_path / "saved"
    script.write_text(
        "import sys, time\nfrom pathlib import Path\nprint('ready', flush=True)\n"
        "try:\n    time.sleep(600)\nexcept KeyboardInterrupt:\n    Path(sys.argv[1]).touch()\n"
    )
    process = start(run, sys.executable, script, saved)
    output = run / "attempts" / "01" / OUTPUT
    deadline = time.monotonic() + 120
    while not (output.exists() and b"ready" in output.read_bytes()):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    assert finish(process, run).exit_code == 130
    assert saved.exists()


@pytest.mark.full
def test_ctrl_c_saves_a_trainer_and_resume_finishes(tmp_path):
    run, script = tmp_path / "run", SCRIPTS / "hf_tiny.py"
    whole = supervise(tmp_path / "whole", sys.executable, script, tmp_path / "whole_out")
    assert whole.exit_code == 0, whole.output
    process = start(run, sys.executable, script, tmp_path / "out")
    wait_for_step(run, 23)
    process.send_signal(signal.SIGINT)
    stopped = finish(process, run)
    assert stopped.exit_code == 130
    assert "holdfast resume" in stopped.output
    assert not (tmp_path / "out" / "final").exists()
    stopped_at = find_last(run / "attempts" / "01" / EVENTS, TrainingStopped)
    assert stopped_at is not None
    assert stopped_at.saved
    done = resume(run)
    assert done.exit_code == 0, done.output
    assert weights(tmp_path / "out" / "final") == weights(tmp_path / "whole_out" / "final")


def test_detached_run_outlives_its_starter(tmp_path):
    run = tmp_path / "run"
    starter = start(run, *LOOP, tmp_path / "out", options=("--detach",), PAUSE="0.01")
    assert starter.wait(120) == 0
    deadline = time.monotonic() + 300
    while (known := _status(run))["state"] not in ("finished", "failed", "stopped"):
        assert time.monotonic() < deadline
        time.sleep(0.3)
    assert known["state"] == "finished"
    assert known["step"] == 200
    agreed = {"state", "phase", "step", "steps", "loss", "metrics", "eta_seconds", "attempts"}
    assert agreed | {"processes", "nodes", "here"} <= set(known)  # fields may be added
    assert {"fallback", "outcome", "diagnosis", "noticed_after_seconds", "step_reached"} <= set(known["attempts"][0])
    assert (tmp_path / "out" / "final.pt").exists()


@pytest.mark.full
def test_remembered_settings_are_reported(tmp_path):
    command = (sys.executable, SCRIPTS / "hf_tiny.py")
    fault = {"FAULT": "loader deadlock", "WORKERS": "2"}
    first = supervise(tmp_path / "one", *command, "out", **fault)
    assert first.exit_code == 0, first.output
    second = supervise(tmp_path / "two", *command, "out", **fault)
    assert second.exit_code == 0, second.output
    assert [one.changes for one in second.outcomes] == [{"loader_workers": 0}]
    remembered = [event for event in read_events(second.run / EVENTS) if isinstance(event, SettingsRemembered)]
    assert [event.changes for event in remembered] == [{"loader_workers": 0}]


@pytest.mark.parametrize(
    ("command", "code", "said"),
    [
        (("no-such-command",), 2, "no-such-command"),
        ((sys.executable, "no_such.py"), 2, "no_such.py"),
        ((sys.executable, "-c", "import sys; sys.exit(7)"), 7, "on purpose"),
        ((sys.executable, "-c", "print(undefined)"), 4, "NameError: name 'undefined' is not defined"),
        ((sys.executable, "-c", "import nosuchmodule"), 4, "ModuleNotFoundError"),
        (("true",), 0, "Finished"),
    ],
)
def test_exit_codes(tmp_path, command, code, said):
    done = supervise(tmp_path / "run", *command)
    assert done.exit_code == code, done.output
    assert said in done.output
    assert len(list((tmp_path / "run" / "attempts").glob("*"))) <= 1


def test_json_prints_one_object_and_nothing_else(tmp_path):
    done = supervise(tmp_path / "run", sys.executable, "-c", "print('noise')", options=("--json",))
    told = json.loads(done.output)
    assert told["state"] == "finished"
    assert told["exit_code"] == done.exit_code == 0


def _status(run) -> dict:
    asked = subprocess.run(
        [sys.executable, "-m", "holdfast", "status", str(run), "--json"], capture_output=True, text=True, check=True
    )
    return json.loads(asked.stdout)


def _activity(run):
    """What the newest attempt does, if it has begun."""
    attempt = read_state(run).attempt if is_run(run) else None
    return attempt.activity if attempt else None


def _status_text(run) -> str:
    return subprocess.run([sys.executable, "-m", "holdfast", "status", str(run)], capture_output=True, text=True).stdout
