"""Loops written by hand whose weights become NaN: it is said while they run and at their end, and only then."""

import json
import subprocess
import sys
import time

import pytest

from holdfast.runs.cause_wording import outcome_text
from tests.lab.supervised import SCRIPTS, Supervised, finish, start, supervise

pytestmark = pytest.mark.lab
LOOP = (sys.executable, SCRIPTS / "numbers_loop.py")


def _status(run) -> dict:
    asked = [sys.executable, "-m", "holdfast", "status", str(run), "--json"]
    return json.loads(subprocess.run(asked, capture_output=True, text=True, check=True).stdout)


def _said(done: Supervised) -> str:
    """All that a person may read of a run."""
    commands = [("status", done.run), ("explain", done.run), ("report", done.run, "--out", done.run / "page.html")]
    for command in commands:
        words = [sys.executable, "-m", "holdfast", *map(str, command)]
        yield subprocess.run(words, capture_output=True, text=True, check=True).stdout
    yield (done.run / "page.html").read_text()
    yield outcome_text(done.outcomes[-1])
    yield done.output


def test_nan_weights_are_reported_without_ending_the_script(tmp_path, lab_row):
    run = tmp_path / "run"
    process = start(run, *LOOP, tmp_path / "out.pt", "nan")
    deadline = time.monotonic() + 120
    while not (run / "request.json").exists() or not (known := _status(run))["attempts"]:
        assert time.monotonic() < deadline
        time.sleep(0.2)
    while known["state"] == "training" and not known["attempts"][0]["diagnosis"]:
        assert time.monotonic() < deadline
        time.sleep(0.2)
        known = _status(run)
    done = finish(process, run)
    first = done.outcomes[0]
    lab_row(
        fault="NaN in the weights",
        phase="step",
        task="own loop",
        noticed_after_seconds=None,
        named=first.diagnosis or "",
        finished=done.exit_code == 0,
        identical=None,
    )
    assert known["state"] == "training", "it was told of only at the end"
    assert "the weights are NaN since about step" in known["attempts"][0]["diagnosis"]
    assert (done.exit_code, first.outcome, first.diagnosis) == (0, "finished", "nan-loss")
    assert 151 <= int(outcome_text(first).partition("about step ")[2].split()[0]) <= 300
    for text in _said(done):
        assert "are NaN since about step" in text or "explain nan-loss" in text, text


@pytest.mark.parametrize("kind", ["scaled", "unused", "healed"])
def test_recovering_nan_loops_are_left_alone(tmp_path, kind):
    done = supervise(tmp_path / "run", *LOOP, tmp_path / "out.pt", kind)
    assert done.exit_code == 0, done.output
    assert outcome_text(done.outcomes[0]) == ""
    assert "NaN" not in outcome_text(done.outcomes[-1])
    if kind != "healed":
        assert "NaN" not in done.output
    if kind == "scaled":
        assert "scale 1e+38" not in done.output, "no step was skipped"
