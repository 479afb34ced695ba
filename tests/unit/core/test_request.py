"""A training request: all problems at once, Hugging Face's names, a complete copy on disk."""

import pytest

from holdfast.core.artifacts import read_artifact
from holdfast.core.errors import Problem, RequestError
from holdfast.core.records import read_request, write_request
from holdfast.core.runfolder import REQUEST
from holdfast.core.setting_values import make_request, read_toml
from holdfast.core.settings import SETTINGS


def problems(**given: object) -> dict[str, Problem]:
    with pytest.raises(RequestError) as raised:
        make_request({"data": "x.csv", **given})
    return {problem.setting: problem for problem in raised.value.problems}


def test_all_problems_are_reported_at_once_with_the_allowed_values():
    found = problems(lr="5", batch_size=0, epochs=-1, task="clasify", lerning_rate=1)
    assert found.keys() == {"lr", "batch_size", "epochs", "task", ""}
    assert (found["lr"].value, found["batch_size"].value) == ("5", "0")
    assert "1e-08 to 1" in found["lr"].text
    assert "1 to 65,536" in found["batch_size"].text
    assert "classify?" in found["task"].text
    assert "learning_rate?" in found[""].text


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
def test_invalid_values_are_refused(name, value):
    assert problems(**{name: value}).keys() == {name}


def test_number_without_bounds_is_read():
    assert make_request({"data": "x.csv", "min_score": "0.5"}).min_score == 0.5


def test_hugging_face_names_and_numbers_as_text_are_accepted():
    request = make_request({"data": "x.csv", "learning_rate": "2e-5", "num_train_epochs": "3", "max-seq-length": 64})
    assert (request.lr, request.epochs, request.max_length) == (2e-5, 3, 64)


def test_contradicting_settings_are_refused():
    assert problems(lora=True, task="classify").keys() == {"lora"}
    assert problems(preset="retriever", task="causal").keys() == {"preset"}
    assert problems(lora=False, lora_r=8).keys() == {"lora_r"}
    assert problems(validation_share=0.6, test_share=0.6).keys() == {"validation_share"}
    assert problems(nodes=2).keys() == {"out"}
    assert make_request({"data": "x.csv", "preset": "retriever", "task": "two-tower"}).task == "two-tower"


def test_request_without_data_is_refused():
    assert problems(data="").keys() == {"data"}


def test_saved_request_is_complete_and_reads_back(tmp_path):
    request = make_request(
        {"data": str(tmp_path / "x.csv"), "text_column": ("a", "b"), "lora": "yes", "task": "causal"}
    )
    write_request(tmp_path, request)
    assert read_request(tmp_path) == request
    assert set(SETTINGS) < set(read_artifact(tmp_path / REQUEST))


def test_toml_file_may_use_tables(tmp_path):
    (tmp_path / "run.toml").write_text('data = "x.csv"\n[learning]\nlr = 1e-3\n')
    assert make_request(read_toml(tmp_path / "run.toml")).lr == 1e-3


def test_file_that_is_not_toml_is_named(tmp_path):
    (tmp_path / "run.toml").write_text("data =\n")
    with pytest.raises(RequestError, match=r"run\.toml"):
        read_toml(tmp_path / "run.toml")


def test_every_setting_has_help():
    assert all(field.help.endswith(".") for field in SETTINGS.values())


def test_trackers_may_be_one_text_or_several():
    assert make_request({"data": "x", "report_to": ("tensorboard,mlflow",)}).report_to == ("tensorboard", "mlflow")
    assert "wandb?" in problems(report_to="wandbb")["report_to"].text
