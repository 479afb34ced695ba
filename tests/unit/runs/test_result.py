"""The last lines of a training run, and its forecast beside what happened."""

import json
import time

from holdfast.runs.result import closing_lines, describe_result
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
