"""A program that crashes once its last line is done has finished; one that had failed before has not."""

import sys
from pathlib import Path

import pytest

from holdfast.runs.cause_wording import outcome_text
from tests.lab.supervised import supervise

pytestmark = [
    pytest.mark.lab,
    pytest.mark.skipif(sys.platform != "linux", reason="the fault is brought about through glibc and libstdc++"),
]
PROGRAM = Path(__file__).parent / "faults" / "left_thread.py"


@pytest.mark.parametrize("how", ["well", "0"])
def test_crash_after_the_last_line_counts_as_finished(tmp_path, how):
    ended = supervise(tmp_path / "run", sys.executable, PROGRAM, tmp_path / "model", how)
    assert ended.exit_code == 0
    assert (tmp_path / "model").read_text() == "the model"
    assert [(one.outcome, one.exit_code, one.diagnosis) for one in ended.outcomes] == [("finished", -6, "exit-crash")]
    assert ended.outcomes[0].cause.exit.signal == "SIGABRT"
    assert "SIGABRT" in outcome_text(ended.outcomes[-1])
    assert "explain exit-crash" in ended.output


def test_exit_handler_crash_comes_after_the_last_line(tmp_path):
    script = tmp_path / "fit.py"
    script.write_text("import atexit, os\natexit.register(os.abort)\nprint('the model is saved')\n")
    ended = supervise(tmp_path / "run", sys.executable, script)
    assert ended.exit_code == 0
    assert [(one.exit_code, one.phase) for one in ended.outcomes] == [(-6, "end")]
    assert ended.outcomes[0].cause.exit.signal == "SIGABRT"
    assert "SIGABRT" in outcome_text(ended.outcomes[-1])


@pytest.mark.parametrize("how", ["raises", "1", "exits"])
def test_a_program_that_failed_before_it_crashed_has_failed(tmp_path, how):
    ended = supervise(
        tmp_path / "run", sys.executable, PROGRAM, tmp_path / "model", how, options=("--max-attempts", "2")
    )
    assert ended.exit_code == 4
    assert {outcome.outcome for outcome in ended.outcomes} == {"died"}
