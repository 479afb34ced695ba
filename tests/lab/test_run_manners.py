"""What no setting can cure is not tried for long: faults of the program itself end the run soon, with file and line."""

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from holdfast.core.event_log import read_events
from holdfast.core.events import ProcessesEnded
from holdfast.core.runfolder import CHILD, EVENTS, OUTPUT
from holdfast.runs.cause_wording import outcome_text
from holdfast.runs.state import read_state
from holdfast.supervisor.members import find_member
from tests.lab.supervised import Supervised, start, supervise

pytestmark = pytest.mark.lab
PYTHON = sys.executable
PROGRAMS = {
    "value": "def read():\n    raise ValueError('lr is missing')\n\n\nread()\n",
    "lock": "import threading\nlock = threading.Lock()\n\n\ndef save():\n    with lock:\n        pass\n\n\n"
    "with lock:\n    save()\n",
    "abort": "import os\nos.abort()\n",
    "input": "name = input('name? ')\n",
    "exit": "import sys\nsys.exit('error: no rows in data.csv')\n",
    "raise": "raise SystemExit('no rows in data.csv')\n",
    "tracker": "import atexit\natexit.register(print, 'find logs at x')\nraise SystemExit('no rows in data.csv')\n",
    "thread": "import sys\nimport threading\nworker = threading.Thread(target=sys.exit, args=('nothing left',))\n"
    "worker.start()\nworker.join()\nprint('nothing left')\nraise SystemExit('no rows in data.csv')\n",
}


def run_program(folder: Path, name: str) -> Supervised:
    script = folder / f"{name}.py"
    script.write_text(PROGRAMS[name])
    return supervise(folder / "run", PYTHON, script)


@pytest.mark.parametrize(
    ("name", "attempts", "slug", "reason", "place"),
    [
        ("value", 2, "unknown", "same_error", "value.py:2"),
        ("lock", 2, "script-deadlock", "same_failure", "lock.py:6"),
        ("abort", 2, "script-abort", "same_failure", "abort.py:2"),
        ("input", 1, "input-empty", "no_fallback", ""),
    ],
)
def test_program_fault_is_named_and_soon_given_up(tmp_path, name, attempts, slug, reason, place):
    ended = run_program(tmp_path, name)
    assert ended.exit_code == 4
    assert len(ended.outcomes) == attempts
    assert (ended.outcomes[-1].diagnosis, ended.reason.kind) == (slug, reason)
    assert ended.outcomes[-1].place.endswith(place)
    assert "py-spy" not in ended.output


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("exit", "error: no rows in data.csv"),
        ("raise", "no rows in data.csv"),
        ("tracker", "no rows in data.csv"),
        ("thread", "no rows in data.csv"),
    ],
)
def test_deliberate_exit_shows_the_programs_message(tmp_path, name, said):
    ended = run_program(tmp_path, name)
    assert (ended.exit_code, len(ended.outcomes)) == (1, 1)
    assert ended.outcomes[0].diagnosis == "script-exit"
    assert f": {said})" in outcome_text(ended.outcomes[-1])


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("-m", "nosuch"), 1, "No module named nosuch"),
        (("nosuch",), 2, "can't open file"),
        ((".",), 1, "can't find '__main__' module"),
    ],
)
def test_missing_program_is_not_a_deliberate_exit(tmp_path, words, code, said):
    ended = supervise(tmp_path / "run", PYTHON, *words)
    assert (ended.exit_code, len(ended.outcomes)) == (code, 1)
    assert ended.outcomes[0].diagnosis == "program-missing"
    assert said in outcome_text(ended.outcomes[-1])


@pytest.mark.parametrize("leaves", ["sys.exit(1)", "sys.exit(-1)", "sys.exit('')", "raise SystemExit(3)"])
def test_silent_nonzero_exit_is_deliberate(tmp_path, leaves):
    script = tmp_path / "fit.py"
    script.write_text(f"import sys\n{leaves}\n")
    ended = supervise(tmp_path / "run", PYTHON, script)
    code = {"sys.exit(-1)": 255, "raise SystemExit(3)": 3}.get(leaves, 1)
    assert (ended.exit_code, len(ended.outcomes)) == (code, 1)
    assert ended.outcomes[0].diagnosis == "script-exit"
    assert "unknown" not in ended.output


def test_exit_handler_crash_keeps_the_deliberate_exit(tmp_path):
    script = tmp_path / "fit.py"
    script.write_text("import atexit, os, sys\natexit.register(lambda: os.abort())\nsys.exit('no rows')\n")
    ended = supervise(tmp_path / "run", PYTHON, script)
    assert (ended.exit_code, len(ended.outcomes)) == (4, 1)
    assert ended.outcomes[0].diagnosis == "script-exit"
    assert ended.outcomes[0].cause.exit.signal == "SIGABRT"
    assert "no rows" in outcome_text(ended.outcomes[-1])


def test_command_that_kills_itself_immediately_is_given_up(tmp_path):
    ended = supervise(tmp_path / "run", "bash", "-c", "kill -9 $$")
    assert ended.exit_code == 4
    assert len(ended.outcomes) == 3
    assert (ended.reason.kind, ended.reason.attempts) == ("killed_at_start", 3)


def test_leftover_processes_are_ended_and_reported(tmp_path):
    ended = supervise(tmp_path / "run", "bash", "-c", "sleep 987 & echo done")
    assert ended.exit_code == 0
    (event,) = (one for one in read_events(ended.run / EVENTS) if isinstance(one, ProcessesEnded))
    assert event.has_finished
    assert event.processes[0].name == "sleep"


@pytest.mark.skipif(sys.platform != "linux", reason="a child is left running only where it can ignore the signal")
def test_orphaned_child_is_shown_and_can_be_stopped(tmp_path):
    run, script = tmp_path / "run", tmp_path / "deaf.py"
    deaf = "signal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint('deaf', flush=True)\ntime.sleep(600)\n"
    script.write_text(f"import signal, time\n{deaf}")
    supervisor = start(run, PYTHON, script)
    output = run / "attempts" / "01" / OUTPUT
    deadline = time.monotonic() + 60
    while not (output.exists() and "deaf" in output.read_text()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    pid = json.loads((run / "attempts" / "01" / CHILD).read_text())["pid"]
    supervisor.kill()
    supervisor.wait()
    orphaned = read_state(run)
    assert (orphaned.state, orphaned.is_orphaned) == ("training", True)
    stopping = [PYTHON, "-m", "holdfast", "stop", str(run)]
    said = subprocess.run(stopping, capture_output=True, text=True, timeout=60).stdout.splitlines()
    assert "supervisor" in said[0]
    assert "ended 1 process" in said[1]
    left = find_member(pid)  # an entry in the table, where nobody reaps it
    assert left is None or left.is_gone
    assert read_state(run).state == "stopped"
