"""What no setting can cure is not tried for long: faults of the program itself end the run soon, with file and line."""

from pathlib import Path

import pytest

from tests.lab.supervised import Supervised, supervise

pytestmark = pytest.mark.lab
PYTHON = __import__("sys").executable
PROGRAMS = {
    "value": "def read():\n    raise ValueError('lr is missing')\n\n\nread()\n",
    "lock": "import threading\nlock = threading.Lock()\n\n\ndef save():\n    with lock:\n        pass\n\n\n"
    "with lock:\n    save()\n",
    "abort": "import os\nos.abort()\n",
    "input": "name = input('name? ')\n",
}


def run_program(folder: Path, name: str) -> Supervised:
    script = folder / f"{name}.py"
    script.write_text(PROGRAMS[name])
    return supervise(folder / "run", PYTHON, script)


@pytest.mark.parametrize(
    ("name", "attempts", "slug", "said"),
    [
        ("value", 2, "unknown", "the same error again at {folder}/value.py:2; no remedy changes that"),
        ("lock", 2, "script-deadlock", "the same again at lock.py:6; no remedy changes that"),
        ("abort", 1, "script-abort", "ended itself at abort.py:2: os.abort()"),
        ("input", 1, "input-empty", "its input is /dev/null"),
    ],
)
def test_a_fault_of_the_program_is_named_and_not_tried_for_long(tmp_path, name, attempts, slug, said):
    ended = run_program(tmp_path, name)
    assert ended.exit_code == 4
    assert len(ended.outcomes) == attempts
    assert ended.outcomes[-1].diagnosis == slug
    assert said.format(folder=tmp_path) in ended.result["sentence"]
    assert "py-spy" not in ended.output


def test_a_command_that_kills_itself_at_once_is_given_up_soon(tmp_path):
    ended = supervise(tmp_path / "run", "bash", "-c", "kill -9 $$")
    assert ended.exit_code == 4
    assert len(ended.outcomes) == 3
    assert "3 times right after its start" in ended.result["sentence"]
