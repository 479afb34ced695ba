"""A training request: all problems at once, HF's names, a complete copy on disk."""

import pytest

from holdfast.core.artifacts import write_artifact
from holdfast.core.errors import RequestError
from holdfast.core.request import FIELDS, make_request, read_saved, read_toml, to_saved


def problems(**given: object) -> str:
    with pytest.raises(RequestError) as raised:
        make_request({"data": "x.csv", **given})
    return raised.value.seen


def test_every_problem_is_reported_at_once_with_what_is_allowed():
    seen = problems(lr="5", batch_size=0, epochs=-1, task="clasify", lerning_rate=1)
    assert "--lr 5: is out of range; allowed: 1e-08 to 1" in seen
    assert "--batch-size 0: is out of range; allowed: 1 to 65,536" in seen
    assert "--epochs -1: is out of range; allowed: 1 to 1,000" in seen
    assert "did you mean classify?" in seen
    assert "did you mean learning_rate?" in seen


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("epochs", 2.5),
        ("epochs", "many"),
        ("lr", "nan"),
        ("lr", True),
        ("seed", -1),
        ("warmup_ratio", 1),
        ("lora", "x"),
        ("eval_steps", "inf"),
        ("min_score", "high"),
        ("text_column", ("a\0b",)),
    ],
)
def test_values_that_mean_nothing_are_refused(name, value):
    assert name.replace("_", "-") in problems(**{name: value})


def test_a_number_without_bounds_is_read():
    assert make_request({"data": "x.csv", "min_score": "0.5"}).min_score == 0.5


def test_hf_names_and_numbers_written_as_text_are_understood():
    request = make_request({"data": "x.csv", "learning_rate": "2e-5", "num_train_epochs": "3", "max-seq-length": 64})
    assert (request.lr, request.epochs, request.max_length) == (2e-5, 3, 64)


def test_settings_that_contradict_each_other_are_refused():
    assert "--lora is for causal" in problems(lora=True, task="classify")
    assert "preset retriever" in problems(preset="retriever", task="causal")
    assert "--lora-r needs --lora" in problems(lora=False, lora_r=8)
    assert "nothing to train on" in problems(validation_share=0.6, test_share=0.6)


def test_a_request_without_data_is_refused():
    with pytest.raises(RequestError, match="cannot be used"):
        make_request({})


def test_it_is_written_back_complete_and_read_again(tmp_path):
    request = make_request(
        {"data": str(tmp_path / "x.csv"), "text_column": ("a", "b"), "lora": "yes", "task": "causal"}
    )
    write_artifact(tmp_path, "request.json", to_saved(request))
    assert read_saved(tmp_path / "request.json") == request
    assert set(FIELDS) < set(to_saved(request))


def test_a_wait_that_was_saved_is_none_that_was_asked_for_of_one_machine(tmp_path):
    together = to_saved(make_request({"data": "x.csv", "out": "y", "nodes": 2, "nodes_wait": 60}))
    write_artifact(tmp_path, "request.json", {**together, "nodes": 1})  # as `resume --nodes 1` leaves it
    assert read_saved(tmp_path / "request.json").nodes == 1
    write_artifact(tmp_path, "request.json", together)
    assert read_saved(tmp_path / "request.json").nodes_wait == 60


def test_a_toml_file_may_use_tables_for_order(tmp_path):
    (tmp_path / "run.toml").write_text('data = "x.csv"\n[learning]\nlr = 1e-3\n')
    assert make_request(read_toml(tmp_path / "run.toml")).lr == 1e-3


def test_a_file_that_is_no_toml_is_named(tmp_path):
    (tmp_path / "run.toml").write_text("data =\n")
    with pytest.raises(RequestError, match="is not TOML"):
        read_toml(tmp_path / "run.toml")


def test_every_setting_has_help():
    assert all(field.metadata["text"].endswith(".") for field in FIELDS.values())


def test_trackers_come_as_one_text_or_many():
    assert make_request({"data": "x", "report_to": ("tensorboard,mlflow",)}).report_to == ("tensorboard", "mlflow")
    assert "did you mean wandb?" in problems(report_to="wandbb")
