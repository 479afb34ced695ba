"""What a person sees of a run."""

from dataclasses import replace

import pytest

from holdfast.core.runfolder import OUTPUT, attempt_folder
from holdfast.runs.live import render_glance, spark_line
from holdfast.runs.status import AttemptStatus, Glance, Status
from holdfast.runs.view import Foreground, clean, closing_lines

STATUS = Status(
    state="training",
    phase="step",
    step=40,
    steps=60,
    loss=0.25,
    metrics={"validation": {"accuracy": 0.9}},
    eta_seconds=75.0,
    attempts=(
        AttemptStatus(
            rung="", outcome="hung", diagnosis="the loader waits for ever", noticed_after_seconds=5.8, step_reached=40
        ),
        AttemptStatus(
            rung="load data in the main process",
            outcome="running",
            diagnosis=None,
            noticed_after_seconds=None,
            step_reached=40,
        ),
    ),
)
GLANCE = Glance(
    status=STATUS, words="python train.py", doing="computes", resident_bytes=2_000_000_000, losses=(3, 2, 1)
)


@pytest.mark.parametrize("width", [39, 80])
def test_the_view_fits_its_terminal_and_says_all_that_matters(width):
    lines = render_glance(GLANCE, width)
    assert max(map(len, lines)) <= width
    text = "\n".join(lines)
    for part in ("python train.py", "step 40 of 60", "1 min 15 s left", "loss 0.25", "now: computes", "[x] attempt 1"):
        assert part in text


def test_a_narrow_view_folds_what_was_measured_and_how_it_ended():
    ended = "finished in 2 attempts, 93 steps, but a process of it ended with code 134"
    status = replace(STATUS, metrics={"step": 93, "test": {"accuracy": 0.98, "macro_f1": 0.97}})
    lines = render_glance(replace(GLANCE, status=status, sentence=ended), 39)
    assert max(map(len, lines)) <= 39
    assert "test accuracy 0.98, test macro_f1 0.97" in lines
    assert " ".join(lines).endswith(ended)


def test_a_low_terminal_gets_no_more_lines_than_it_has():
    assert len(render_glance(GLANCE, 80, height=6)) <= 6


def test_losses_become_a_row_of_bars():
    assert spark_line([3, 2, 1], 10) == "█▅▁"
    assert len(spark_line(range(1000), 20)) <= 20
    assert spark_line([float("nan"), 1.0], 10) == ""


def test_our_lines_start_on_a_line_of_their_own(tmp_path):
    written: list[bytes] = []
    view = Foreground(tmp_path, written.append)
    attempt_folder(tmp_path, 1).mkdir(parents=True)
    view("attempt", {"number": 1, "rung": "", "because": ""})
    (attempt_folder(tmp_path, 1) / OUTPUT).write_bytes(b"half a line")
    view("leftovers ended", {"words": "ended 2 processes"})
    assert b"".join(written) == b"half a line\nholdfast: ended 2 processes\n"


def test_a_log_cannot_steer_the_terminal():
    assert clean("a\x1b[31m b\n c") == "a[31m b c"


@pytest.mark.parametrize(
    ("cause", "said"), [("no rows", "failed after 1 attempt; so again; 1.0 s"), ("x" * 400, "xxx")]
)
def test_a_cause_that_stands_on_the_screen_is_not_said_again(tmp_path, cause, said):
    view = Foreground(tmp_path, lambda content: None)
    view("ended", {"number": 1, "sentence": cause, "slug": "script-exit"})
    sentence = f"failed after 1 attempt: {cause}; so again"
    assert said in closing_lines("failed", sentence, 1.0, "runs/a", (), "script-exit", view.cause)[0]
