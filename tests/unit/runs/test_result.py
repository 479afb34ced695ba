"""The last lines of a training run, and its forecast beside what happened."""

import json
import time

from holdfast.core.artifacts import write_artifact
from holdfast.core.records import Outcome
from holdfast.core.runfolder import OUTCOME, attempt_folder
from holdfast.runs.result import closing_lines, describe_result, excuses, lost_seconds
from holdfast.runs.supervise import Result


def result(state="finished", **more):
    given = {"state": state, "exit_code": 0, "sentence": f"{state}, 9 steps", "attempts": 1, "seconds": 12.0}
    return Result(**{**given, **more})


def test_the_forecast_stands_beside_what_happened(tmp_path):
    (tmp_path / "metrics.json").write_text(json.dumps({"step": 9, "test": {"accuracy": 0.9, "classes": []}}))
    plan = {"task": "classify", "forecast": {"seconds": 100.0, "made_at": time.time() - 110, "peak_bytes": 10}}
    found = describe_result(tmp_path, plan, result())
    assert found["metrics"] == {"test": {"accuracy": 0.9}}
    assert abs(found["forecast"]["seconds"]["error"] - 0.1) < 0.02
    assert found["forecast"]["peak_bytes"]["actual"] is None


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


def test_a_cards_memory_is_compared_with_the_cards_own(tmp_path):
    plan = {"task": "classify", "forecast": {"peak_bytes": 200, "card_peak_bytes": 1000}}
    attempt = attempt_folder(tmp_path, 1)
    attempt.mkdir(parents=True)
    (attempt / "events.jsonl").write_text('{"event": "step", "step": 0, "time": 1.0, "card_bytes": 1100}\n')
    (attempt / "samples.jsonl").write_text('{"event": "sample", "resident_bytes": 220}\n')
    found = describe_result(tmp_path, plan, result())["forecast"]
    assert (found["peak_bytes"]["error"], found["card_peak_bytes"]["error"]) == (0.1, 0.1)


def steps(first: int, count: int, begun: float) -> list[dict[str, object]]:
    told = [{"event": "step", "step": first + at, "time": begun + at} for at in range(count)]
    return [{"event": "training", "first_step": first, "time": begun - 1}, *told]


def test_what_a_failure_cost_is_counted_from_the_last_step_that_was_kept():
    died = steps(0, 10, begun=100.0)  # step 9 at 109; saved after step 5, at 104
    resumed = steps(5, 10, begun=130.0)
    assert lost_seconds([died, resumed]) == 130.0 - 104.0
    assert lost_seconds([died, resumed], since=120.0) == 10.0
    assert lost_seconds([died]) == 0.0
    assert lost_seconds([died, [], resumed]) == 130.0 - 104.0


def test_the_days_between_a_stop_and_its_resume_are_no_part_of_the_time(tmp_path):
    now, day = time.time(), 86_400.0
    for number, state, started in ((1, "stopped", now - day - 80), (2, "finished", now - 40)):
        attempt = attempt_folder(tmp_path, number)
        attempt.mkdir(parents=True)
        write_artifact(attempt, OUTCOME, Outcome(number=number, outcome=state, started=started, seconds=40.0))
        told = steps(30 * (number - 1), 30, begun=started + 5)
        (attempt / "events.jsonl").write_text("\n".join(map(json.dumps, told)))
    plan = {"task": "classify", "forecast": {"seconds": 100.0, "made_at": now - day - 70}}
    clock = describe_result(tmp_path, plan, result())["forecast"]["seconds"]
    assert abs(clock["actual"] - 70) < 5
    assert abs(clock["lost_seconds"] - 11) < 1  # from its last step to its end, and from the start to the first step


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
