"""The last lines of a training run, and its forecast beside what happened."""

import json

from holdfast.core.records import Result
from holdfast.runs.result import closing_lines, excuses


def result(state="finished", **more):
    given = {"state": state, "exit_code": 0, "sentence": f"{state}, 9 steps", "attempts": 1, "seconds": 12.0}
    return Result(**{**given, **more})


def test_a_finished_run_says_how_to_use_the_model(tmp_path):
    (tmp_path / "result.json").write_text(json.dumps({"metrics": {"test": {"accuracy": 0.9}}}))
    said = "\n".join(text for _, _, text in closing_lines(tmp_path, result()))
    assert "accuracy 0.9" in said
    assert f"holdfast predict {tmp_path}" in said


def test_a_stopped_run_says_how_to_go_on(tmp_path):
    said = "\n".join(text for _, _, text in closing_lines(tmp_path, result("stopped", exit_code=130)))
    assert f"holdfast resume {tmp_path}" in said


def test_a_failed_run_gives_its_cause_and_what_to_try(tmp_path):
    failed = result("failed", exit_code=4, sentence="no memory", remedies=("buy some",), slug="host-oom")
    said = "\n".join(text for _, _, text in closing_lines(tmp_path, failed))
    assert "no memory" in said
    assert "try    buy some" in said
    assert "holdfast explain host-oom" in said


def test_a_disturbed_machine_and_failed_attempts_are_named_beside_the_error():
    clock = {"forecast": 100.0, "actual": 220.0, "error": 1.2, "lost_seconds": 20.0}
    failed, busy = excuses({**clock, "cores": {"forecast": 2.0, "actual": 1.0}})
    assert failed == "20 s of it went into attempts that were cut short"
    assert "other programs kept the processor busy: this run computed with 1.0 cores, and with 2.0 cores when" in busy
    assert busy.endswith("about 1 min 40 s, as forecast")
    assert excuses({**clock, "lost_seconds": 0.0, "cores": {"forecast": 2.0, "actual": 1.9}}) == []
    assert excuses({"forecast": 1, "actual": 2}) == []


def test_a_processor_that_became_freer_is_not_called_busy():
    clock = {"forecast": 100.0, "actual": 80.0, "error": -0.2, "cores": {"forecast": 0.5, "actual": 0.58}}
    (said,) = excuses(clock)
    assert said.startswith("other programs left more of it: this run computed with 0.58 of a core, and with 0.50 of")


def test_the_forecast_is_said_in_words(tmp_path):
    clock = {"forecast": 220.0, "actual": 487.0, "error": 1.2136, "cores": {"forecast": 0.2, "actual": 0.11}}
    memory = {"forecast": 452e6, "actual": 394e6, "error": -0.1283}
    found = {"metrics": {"test": {"accuracy": 1.0}}, "forecast": {"seconds": clock, "peak_bytes": memory}}
    (tmp_path / "result.json").write_text(json.dumps(found))
    lines = [text for _, name, text in closing_lines(tmp_path, result()) if name == "forecast"]
    assert lines == [
        "took 8 min 7 s, 121% longer than forecast (3 min 40 s); 394.0 MB of memory, 13% less than forecast (452.0 MB)"
    ]


def test_a_model_that_nothing_was_measured_on_is_said_to_be_unmeasured(tmp_path):
    (tmp_path / "result.json").write_text(json.dumps({"metrics": {}}))
    (tmp_path / "dataset.json").write_text(json.dumps({"splits": {"train": 21}}))
    said = "\n".join(text for _, _, text in closing_lines(tmp_path, result()))
    assert "not measured: there are no rows for validation or test (all 21 are for training)" in said
    assert "--validation-share 0.2" in said


def test_a_wrong_label_for_every_text_is_not_called_no_label(tmp_path):
    for metrics, is_said in (({"micro_f1": 0.0}, True), ({"micro_f1": 0.0, "accuracy": 0.0}, False)):
        (tmp_path / "result.json").write_text(json.dumps({"metrics": {"test": metrics}}))
        said = "\n".join(text for _, _, text in closing_lines(tmp_path, result()))
        assert ("no label at all" in said) is is_said
