"""The report of runs in every state: whatever is in the folder, a page comes out, and data stays text."""

import html
import json
import os
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from holdfast.core import events as ev
from holdfast.core.artifacts import write_artifact
from holdfast.core.data_warnings import data_warning
from holdfast.core.errors import MachineError, RequestError
from holdfast.core.event_log import EventLog
from holdfast.core.evidence import Cause, Decision
from holdfast.core.facts import BadRow, DatasetFacts
from holdfast.core.plan import Fallback, Reason
from holdfast.core.records import Mistakes, Outcome, WrongLabels, write_record
from holdfast.core.runfolder import DECISION, EVENTS, OUTCOME, REQUEST, attempt_folder
from holdfast.runs.lease import hold
from holdfast.runs.report.data_section import histogram
from holdfast.runs.report.html import Html, tag
from holdfast.runs.report.page import render_report, write_report
from holdfast.runs.report.result_section import worst_confusions
from holdfast.runs.report.svg_charts import Chart, Series, line_chart, nice_ticks, smoothed, thinned
from holdfast.runs.state import read_state, read_whole_state
from holdfast.runs.wording import NO_LABEL, attempt_text, headline, not_measured_text

EVIL = "<script>alert('x')</script> & \"quotes\""


class Whole(HTMLParser):
    """Counts what is open, and keeps what could reach out."""

    def __init__(self, page: str):
        super().__init__()
        self.open: list[str] = []
        self.reaches: list[str] = []
        self.tags: list[str] = []
        self.feed(page)

    def handle_starttag(self, name, attributes):
        self.tags.append(name)
        if name not in ("meta", "br", "wbr"):
            self.open.append(name)
        self.reaches += [value for key, value in attributes if key in ("src", "href") and not value.startswith("#")]

    def handle_startendtag(self, name, attributes):
        self.tags.append(name)

    def handle_endtag(self, name):
        assert self.open.pop() == name


def write(folder: Path, name: str, value: object) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(json.dumps(value))


def classify_run(run: Path) -> Path:
    """A finished run of two attempts, the first of which was killed after six steps."""
    settings = {"task": "classify", "model": "/models/minilm", "prepared": str(run / "prepared"), "run": str(run)}
    for number, first, last in ((1, 0, 6), (2, 4, 20)):
        write(attempt_folder(run, number), "settings.json", settings)
        events = EventLog(attempt_folder(run, number) / EVENTS)
        if number == 2:
            events.write(ev.Resumed(step=first))
        events.write(ev.TrainingStarted(first_step=first, steps=20))
        for step in range(first, last):
            events.write(ev.StepDone(step=step, loss=1 / (step + 1), lr=1e-4, norm=1.0))
        if number == 2:
            events.write(ev.Evaluated(step=20, metrics={"accuracy": 0.9, "macro_f1": 0.8, "loss": 0.3}))
            events.write(ev.TrainingFinished(steps=20, kept_step=20))
    diagnosis = {"slug": "killed-oom", "confidence": "proven", "title": "killed for memory: " + EVIL}
    write(
        attempt_folder(run, 1), "diagnosis.json", diagnosis | {"because": [{"source": "log", "line": 3, "text": EVIL}]}
    )
    remedy = Fallback("smaller micro-batches", {"micro_batch": "halve"})
    decision = Decision(action="fallback", reason=Reason(kind="next_fallback"), fallback=remedy)
    write_artifact(attempt_folder(run, 1), DECISION, decision)
    cause = Cause(slug="killed-oom", confidence="proven", title="killed for memory: " + EVIL)
    outcome = Outcome(number=1, outcome="died", diagnosis="killed-oom", cause=cause)
    write_artifact(attempt_folder(run, 1), OUTCOME, outcome)
    classes = [{"label": name, "precision": 0.9, "recall": 0.8, "f1": 0.85, "support": 10} for name in ("good", EVIL)]
    found = {"accuracy": 0.9, "macro_f1": 0.8, "loss": 0.3, "classes": classes, "confusion": [[9, 1], [2, 8]]}
    write(run, "metrics.json", {"step": 20, "steps": 20, "validation": found, "test": found})
    chances = {"good": 0.2, EVIL: 0.8}
    wrong = WrongLabels(text=EVIL, expected=("good",), predicted=(EVIL,), probabilities=chances, row=7)
    write_record(run, Mistakes(split="test", labels=(wrong,)))
    dataset = DatasetFacts(
        task="classify",
        form="one label",
        rows=90,
        columns=("text", "label"),
        labels={"good": 50, EVIL: 40},
        warnings=(data_warning("unread-files", files=(EVIL,)),),
        bad_rows=(BadRow(file="a.csv", row=3, value=EVIL, reason=EVIL),),
        bad_row_count=1,
        splits={"train": 90},
    )
    write_record(run, dataset)
    measured = [
        {"words": "2 threads fp32", "samples_per_second": 400.0, "agrees": True, "is_chosen": True},
        {"words": "1 thread fp32", "samples_per_second": 60.0, "agrees": True, "is_reference": True},
    ]
    forecast = {"seconds": 100.0, "peak_bytes": 10**9, "because": "from 100 steps"}
    choices = {"threads": {"value": 2, "because": EVIL}}
    write(run, "plan.json", {"choices": choices, "measured": measured, "forecast": forecast})
    write(run, "machine.json", {"os": "linux", "cpu_count": 2, "memory_bytes": 24 * 10**9})
    write(run, "result.json", {"state": "finished", "sentence": "finished, 20 steps"})
    return run


def test_the_report_is_one_page_without_external_links(tmp_path):
    run = classify_run(tmp_path / "run")
    page = write_report(run).read_text()
    seen = Whole(page)
    assert seen.open == []
    assert seen.reaches == []
    assert "script" not in seen.tags
    assert "<svg" in page
    for part in ("How it learned", "How good it is", "What it gets wrong", "Attempts", "The plan", "The machine"):
        assert f">{part}</h2>" in page
    state = read_whole_state(run)
    assert [attempt.is_failed for attempt in state.attempts] == [True, False]
    assert f"{headline(state)}</p>" in page
    assert "90.0%" in headline(state)


def test_markup_in_the_data_is_shown_as_text(tmp_path):
    page = write_report(classify_run(tmp_path / "run")).read_text()
    assert EVIL not in page
    assert page.count("&lt;script&gt;") >= 7
    assert "script-src" not in page
    assert "default-src &#x27;none&#x27;" in page


def test_a_step_done_again_after_a_resume_counts_once(tmp_path):
    state = read_whole_state(classify_run(tmp_path / "run"))
    assert list(state.curves.steps) == list(range(1, 21))
    assert list(state.curves.evaluations) == [20]


def test_the_cause_and_the_remedy_of_an_attempt_are_shown(tmp_path):
    page = write_report(classify_run(tmp_path / "run")).read_text()
    for part in ("Cause, proven: ", "Smaller micro-batches [micro_batch halve]", "resumed from step 4"):
        assert part in page


@pytest.mark.parametrize("kept", [(), ("metrics.json",), ("dataset.json", "plan.json")])
def test_a_run_that_failed_early_still_has_a_page(tmp_path, kept):
    run = classify_run(tmp_path / "run")
    for path in run.glob("*.json"):
        if path.name not in kept:
            path.unlink()
    (attempt_folder(run, 2) / EVENTS).write_text('{"event": "step_done", "step": 4, "lo')
    page = write_report(run).read_text()
    assert Whole(page).open == []
    assert "Not running." in page
    assert "holdfast resume" not in page  # without its request it cannot be


def test_a_run_without_a_result_reads_as_in_status(tmp_path):
    run = classify_run(tmp_path / "run")
    write(run, "request.json", {"kind": "train", "data": "reviews.csv"})
    (run / "result.json").write_text('{"state": "fini')
    state = read_state(run)
    assert (state.state, state.attempt.outcome) == ("stopped", "finished")
    page = render_report(state)
    assert headline(state).replace("'", "&#x27;") in page
    assert f"holdfast resume {run}" in page


def test_an_attempt_that_still_runs_is_shown_as_running(tmp_path):
    run = classify_run(tmp_path / "run")
    write(run, "request.json", {"kind": "train", "data": "reviews.csv"})
    (run / "result.json").unlink()
    kept = [line for line in (attempt_folder(run, 2) / EVENTS).read_text().splitlines(True) if "finished" not in line]
    (attempt_folder(run, 2) / EVENTS).write_text("".join(kept))
    assert read_state(run).attempt.outcome == "interrupted"
    with hold(run):
        state = read_state(run)
    assert (state.state, state.attempt.outcome) == ("training", "running")
    assert state.attempt.step == 20
    assert attempt_text(state.attempt) in render_report(state)


def test_files_of_a_strange_shape_are_passed_over(tmp_path):
    run = classify_run(tmp_path / "run")
    for name, text in (
        ("plan.json", "[1"),
        ("machine.json", "[]"),
        ("dataset.json", '{"labels": 3, "warnings": null}'),
    ):
        (run / name).write_text(text)
    write(run, "metrics.json", {"validation": {"accuracy": None, "confusion": "no"}})
    write(run, "result.json", {"state": "finished", "sentence": None, "forecast": {"seconds": {"forecast": None}}})
    assert Whole(write_report(run).read_text()).open == []


def test_a_supervised_command_has_its_own_page(tmp_path):
    run = tmp_path / "run"
    write(run, "request.json", {"kind": "command", "command": ["python", "train.py", EVIL], "cwd": "/"})
    write(run, "result.json", {"state": "failed", "exit_code": 4, "sentence": "Failed."})
    attempt = attempt_folder(run, 1)
    write(attempt, "settings.json", {"changes": {}})
    events = EventLog(attempt / EVENTS)
    for step in range(10, 200, 10):
        events.write(ev.Logged(step=step, values={"loss": 2.0 - step / 200, "learning_rate": 1e-5}))
    events.write(ev.Logged(step=190, values={"eval_accuracy": 0.7, "eval_loss": 0.9}))
    (attempt / "output.log").write_text("first\r 10%\r 20%\nTraceback: " + EVIL)
    page = write_report(run).read_text()
    assert Whole(page).open == []
    state = read_whole_state(run)
    assert (state.state, len(state.attempts)) == ("failed", 1)
    assert html.escape(headline(state)) in page
    assert "python train.py" in page
    assert " 20%\nTraceback: &lt;script" in page
    curves = state.curves
    assert list(curves.steps) == list(range(10, 200, 10))
    assert curves.evaluations == {190: {"accuracy": 0.7, "loss": 0.9}}


def test_something_else_than_a_run_folder_is_refused(tmp_path):
    with pytest.raises(RequestError, match="no such folder"):
        write_report(tmp_path / "none")
    (tmp_path / "other.txt").write_text("x")
    with pytest.raises(RequestError, match="is not the folder of a run"):
        write_report(tmp_path)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="Linux only")
def test_a_report_on_a_full_disk_leaves_no_file(tmp_path):
    (run := tmp_path / "run").mkdir()
    (run / REQUEST).write_text("{}")
    (tmp_path / f".r.html.{os.getpid()}.draft").symlink_to("/dev/full")
    with pytest.raises(MachineError, match=f"{tmp_path}/r.html") as refused:
        write_report(run, tmp_path / "r.html")
    assert refused.value.slug == "disk-full"
    assert refused.value.found.startswith("No space left on device; ")
    assert refused.value.try_next
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_text_is_escaped_and_markup_is_not():
    assert tag("p", EVIL, Html("<b>x</b>"), None, ["a", "<"], title='"') == (
        '<p title="&quot;">&lt;script&gt;alert(&#x27;x&#x27;)&lt;/script&gt; &amp; &quot;quotes&quot;<b>x</b>a&lt;</p>'
    )


@pytest.mark.parametrize(("low", "high"), [(0, 1), (0.69, 0.71), (5, 5), (-3, 40_000), (1e-9, 2e-9), (float("inf"), 1)])
def test_ticks_are_round_and_enclose_the_range(low, high):
    ticks = nice_ticks(low, high)
    assert 2 <= len(ticks) <= 12
    assert ticks == sorted(ticks)
    if high > low:
        assert ticks[0] <= low + 1e-12
        assert ticks[-1] >= high - 1e-12


def test_thinning_keeps_the_peaks():
    points = [(float(x), 100.0 if x == 777 else 0.0) for x in range(5000)]
    few = thinned(points, most=100)
    assert len(few) <= 102
    assert (777.0, 100.0) in few


def test_a_smoothed_line_starts_and_stays_among_the_points():
    line = smoothed([(float(x), 5.0) for x in range(40)])
    assert all(abs(y - 5.0) < 1e-9 for _, y in line)


def test_the_histogram_counts_every_text_and_names_round_ranges():
    bars = histogram([3, 4, 5, 12, 30, 31, 700] * 40)
    assert sum(count for _, count in bars) == 280
    assert all(re.fullmatch(r"\d+|\d+\u2013\d+|\d+\+", name) for name, _ in bars)
    assert histogram([]) == []


def test_the_worst_confusions_come_first():
    assert worst_confusions([[5, 1, 0], [3, 2, 0], [0, 0, 4]], ["a", "b", "c"]) == [("b", "a", 3, 5), ("a", "b", 1, 6)]


def test_a_constant_share_is_drawn_between_0_and_1():
    series = [Series(name="micro F1", points=[(32.0, 0.0)], dots=True)]
    page = line_chart(Chart(title="Validation", about="", series=series, x_name="step", percent=True))
    assert "-" not in re.sub(r"<[^>]*>", "", page)


def test_report_of_a_model_without_labels(tmp_path):
    run = classify_run(tmp_path / "run")
    write(run, "metrics.json", {"step": 20, "steps": 20, "test": {"micro_f1": 0.0, "macro_f1": 0.0}})
    assert NO_LABEL[1:] in render_report(read_whole_state(run))


def test_report_of_an_unmeasured_model(tmp_path):
    run = classify_run(tmp_path / "run")
    write(run, "metrics.json", {"step": 20, "steps": 20})
    write(run, "result.json", {"state": "finished", "sentence": "finished, 20 steps"})
    write_record(run, DatasetFacts(task="classify", form="one label", rows=21, columns=(), splits={"train": 21}))
    state = read_whole_state(run)
    assert not_measured_text(state)[1:] in render_report(state)
