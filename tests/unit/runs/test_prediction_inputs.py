"""What goes to the model and how its answers are written; the model itself is asked in tests/lab/test_predict.py."""

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest

from holdfast.core.errors import RequestError
from holdfast.core.facts import DatasetFacts
from holdfast.core.records import ModelInfo, write_record
from holdfast.runs.answers_file import check_target, flat, joined, write_answers
from holdfast.runs.finished_model import FinishedModel, find_model
from holdfast.runs.prediction_inputs import PredictionInputs


def model_of(task: str, run: Path | None = None, **info: Any) -> FinishedModel:
    return FinishedModel(folder=Path("model"), task=task, run=run, info=ModelInfo(task=task, **info) if info else None)


def write_model(folder: Path, architecture: str = "BertForSequenceClassification") -> Path:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({"architectures": [architecture]}))
    (folder / "model.safetensors").write_bytes(b"x")
    return folder


def asked(asking: PredictionInputs, path: Path) -> list[dict]:
    return [row.asked for row in asking.file(path)]


def test_run_folder_and_model_folder_give_the_same_model(tmp_path):
    (tmp_path / "run" / "attempts").mkdir(parents=True)
    folder = write_model(tmp_path / "run" / "model")
    (folder / "holdfast.json").write_text('{"task": "causal"}')
    facts = DatasetFacts(task="causal", form="text", rows=9, columns=("review",), text_column="review")
    write_record(tmp_path / "run", facts)
    for path in (tmp_path / "run", folder):
        found = find_model(path)
        assert (found.folder, found.task, found.run) == (folder, "causal", tmp_path / "run")
        assert found.dataset == facts


@pytest.mark.parametrize(
    ("architecture", "task"),
    [("BertForSequenceClassification", "classify"), ("LlamaForCausalLM", "causal"), ("GPT2LMHeadModel", "causal")],
)
def test_a_foreign_model_folder_is_known_by_its_architecture(tmp_path, architecture, task):
    assert find_model(write_model(tmp_path / "model", architecture)).task == task


def test_errors_say_what_a_folder_is(tmp_path):
    with pytest.raises(RequestError, match="no such folder"):
        find_model(tmp_path / "none")
    (tmp_path / "project" / "model").mkdir(parents=True)
    with pytest.raises(RequestError, match="is not the folder of a run or of a model"):
        find_model(tmp_path / "project")
    (tmp_path / "run" / "attempts").mkdir(parents=True)
    with pytest.raises(RequestError, match="has no finished model yet"):
        find_model(tmp_path / "run")
    (tmp_path / "run" / "result.json").write_text('{"state": "finished"}')
    with pytest.raises(RequestError) as missing:
        find_model(tmp_path / "run")
    assert not any("resume" in str(advice) for advice in missing.value.try_next)  # it would only say: finished
    pickled = tmp_path / "pickled"
    pickled.mkdir()
    (pickled / "pytorch_model.bin").write_bytes(b"x")
    with pytest.raises(RequestError, match="pickle, which can run arbitrary code"):
        find_model(pickled)
    with pytest.raises(RequestError, match="is unknown"):
        find_model(write_model(tmp_path / "other", "ViTForImageClassification"))


def test_the_column_that_was_learned_from_is_asked(tmp_path):
    (tmp_path / "run").mkdir()
    facts = DatasetFacts(task="classify", form="one label", rows=9, columns=(), roles={"text": ("remark",)})
    write_record(tmp_path / "run", facts)
    file = tmp_path / "new.csv"
    file.write_text("text,remark\nwrong,right\n")
    assert asked(PredictionInputs(model_of("classify", tmp_path / "run")), file) == [{"text": "right"}]
    assert asked(PredictionInputs(model_of("classify")), file) == [{"text": "wrong"}]
    assert asked(PredictionInputs(model_of("classify"), ("remark", "text")), file) == [{"text": "right\nwrong"}]


def test_an_unclear_column_error_lists_the_columns(tmp_path):
    file = tmp_path / "new.csv"
    file.write_text("one,two\na,b\n")
    with pytest.raises(RequestError) as error:
        asked(PredictionInputs(model_of("classify")), file)
    assert error.value.found.endswith("one, two")
    with pytest.raises(RequestError, match="no column 'three'"):
        asked(PredictionInputs(model_of("classify"), ("three",)), file)


def test_rows_without_text_are_skipped_but_kept(tmp_path):
    file = tmp_path / "new.jsonl"
    file.write_text('{"text": "a"}\n{"text": ""}\n{"text": null}\n{"te\n')
    asking = PredictionInputs(model_of("classify"))
    assert asked(asking, file) == [{"text": "a"}, {}, {}]
    assert asking.empty_rows == 2
    assert [(bad.file, bad.row) for bad in asking.bad.listed] == [("new.jsonl", 4)]
    assert len(asking.notes()) == 2
    assert asking.empty_rows == 2


def test_prompt_leaves_out_the_last_answer(tmp_path):
    file = tmp_path / "new.jsonl"
    turns = [
        {"role": "system", "content": "s"},
        {"role": "user", "content": "u"},
        {"role": "assistant", "content": "a"},
    ]
    file.write_text(json.dumps({"messages": turns}) + "\n")
    assert asked(PredictionInputs(model_of("causal", chat_template="x")), file) == [
        {"turns": [["system", "s"], ["user", "u"]]}
    ]


def test_instruction_and_input_are_joined_as_in_training(tmp_path):
    roles = {"prompt": ("instruction",), "context": ("input",)}
    write_record(tmp_path, DatasetFacts(task="causal", form="instruction", rows=9, columns=(), roles=roles))
    file = tmp_path / "new.jsonl"
    file.write_text('{"instruction": "Sum up", "input": "a text", "output": "t"}\n')
    assert asked(PredictionInputs(model_of("causal", tmp_path, chat_template="x")), file) == [
        {"turns": [["user", "Sum up\n\na text"]]}
    ]
    plain = PredictionInputs(model_of("causal", max_length=9))
    assert [row.asked for row in plain.texts(["once", " "])] == [{"text": "once"}, {}]


def test_standard_input_has_one_text_or_object_per_line():
    asking = PredictionInputs(model_of("classify"))
    stream = io.StringIO('one text, with a comma\n\n{"text": "two", "id": 7}\n{"broken\n')
    rows = list(asking.stream(stream))
    assert [row.asked for row in rows] == [{"text": "one text, with a comma"}, {"text": "two"}]
    assert rows[1].given == {"text": "two", "id": 7}
    assert asking.bad.count == 1


def test_answer_columns_never_replace_input_columns():
    assert joined({"text": "a", "predicted": "old"}, {"predicted": "x"}) == {
        "text": "a",
        "predicted": "old",
        "predicted_2": "x",
    }


def test_a_table_of_labels_can_list_every_label(tmp_path):
    said = {"predicted": "b", "probability": 0.9, "probabilities": {"b": 0.9, "a": 0.1}}
    write_answers(tmp_path / "out.csv", [({"text": "x"}, {}), ({"text": "y, z"}, said)], every_label=True)
    rows = list(csv.DictReader((tmp_path / "out.csv").open()))
    assert [row["predicted"] for row in rows] == ["", "b"]
    assert rows[1] == {"text": "y, z", "predicted": "b", "probability": "0.9", "p(a)": "0.1", "p(b)": "0.9"}


def test_labels_are_joined_and_passages_get_rows():
    many = {"predicted": ["a", "c"], "probabilities": {"a": 0.9, "c": 0.6, "b": 0.1}}
    assert flat(many) == [{"predicted": "a|c", "probability": "0.9000|0.6000"}]
    found = {"found": [{"score": 0.5, "text": "p"}, {"score": 0.4, "text": "q"}]}
    assert [line["rank"] for line in flat(found)] == [1, 2]


def test_json_lines_keep_everything(tmp_path):
    said = {"predicted": ["a"], "probabilities": {"a": 0.9}}
    assert write_answers(tmp_path / "out.jsonl", [({"id": 1, "text": "é"}, said)]) == 1
    assert json.loads((tmp_path / "out.jsonl").read_text()) == {"id": 1, "text": "é", **said}


def test_a_target_that_cannot_be_written_is_refused_at_once(tmp_path):
    for path in (tmp_path / "out.docx", tmp_path / "none" / "out.csv", tmp_path):
        with pytest.raises(RequestError):
            check_target(path)


def test_an_answer_that_fails_half_way_leaves_no_file(tmp_path):
    def pairs():
        yield {"text": "x"}, {"predicted": "a", "probabilities": {"a": 1.0}}
        raise RequestError("the model went away")

    with pytest.raises(RequestError):
        write_answers(tmp_path / "out.csv", pairs())
    assert list(tmp_path.iterdir()) == []
