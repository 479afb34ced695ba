"""Models to start from: which files are fetched, what a folder must hold, what an answer of the hub means."""

import json
import struct

import pytest

from holdfast.core.errors import RequestError
from holdfast.models.catalog import DEFAULT_FOR, known_model
from holdfast.models.fetch import kind_of, wanted_files
from holdfast.models.from_hub import get_from_hub
from holdfast.models.shape import read_shape
from holdfast.models.store import ModelFolder, all_stored, check_folder, keep, needs_saving_again, stored


@pytest.fixture(autouse=True)
def store(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def weights(path, shape=(3, 4)):
    head = json.dumps({"w": {"dtype": "F32", "shape": shape, "data_offsets": [0, 48]}}).encode()
    path.write_bytes(struct.pack("<Q", len(head)) + head + bytes(48))


def test_weights_are_downloaded_once_as_safetensors():
    files = {
        "config.json": 1,
        "tokenizer.json": 2,
        "model.safetensors": 100,
        "pytorch_model.bin": 100,
        "onnx/model.onnx": 100,
        "1_Pooling/config.json": 1,
        "README.md": 1,
    }
    assert set(wanted_files(files)) == {"config.json", "tokenizer.json", "model.safetensors", "1_Pooling/config.json"}
    del files["model.safetensors"]
    assert "pytorch_model.bin" in wanted_files(files)


def test_hub_errors_are_recognized():
    class GatedRepoError(Exception):
        pass

    class ConnectError(OSError):
        pass

    assert kind_of(GatedRepoError()) == "gated"
    assert kind_of(ConnectError()) == "unreachable"
    assert kind_of(OSError(28, "full")) == "disk"
    assert kind_of(ValueError("odd")) == "unknown"


def test_invalid_name_is_refused_without_a_request():
    with pytest.raises(RequestError) as refused:
        get_from_hub("no/such/model/name", lambda *_: None, note=lambda _: None)
    assert refused.value.setting == "model"


def test_a_stored_model_is_whole_or_absent():
    def cut_off(draft):
        (draft / "config.json").write_text("{}")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        keep("org/name", "a test", cut_off)
    assert stored("org/name") is None
    keep("org/name", "a test", lambda draft: (draft / "config.json").write_text("{}"))
    assert [model.name for model in all_stored()] == ["org/name"]


def test_folder_without_model_lists_missing_files(tmp_path):
    with pytest.raises(RequestError, match=r"config\.json is missing"):
        check_folder(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(RequestError, match="no weights"):
        check_folder(tmp_path)
    (tmp_path / "adapter").mkdir()
    (tmp_path / "adapter" / "adapter_config.json").write_text("{}")
    with pytest.raises(RequestError, match="adapter"):
        check_folder(tmp_path / "adapter")


def test_pickled_weights_are_saved_again_before_use(tmp_path):
    (tmp_path / "pytorch_model.bin").write_bytes(b"")
    assert "pickled" in needs_saving_again(tmp_path)


def test_model_size_is_read_from_the_weights_header(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "bert", "hidden_size": 4, "num_hidden_layers": 2}))
    weights(tmp_path / "model.safetensors")
    shape = read_shape(ModelFolder(name="m", folder=tmp_path, source="a test"))
    assert (shape.parameters, shape.layers, shape.hidden, shape.inner, shape.kind) == (12, 2, 4, 16, "bert")


def test_weights_that_were_cut_off_are_refused(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    weights(tmp_path / "model.safetensors")
    (tmp_path / "model.safetensors").write_bytes((tmp_path / "model.safetensors").read_bytes()[:-8])
    with pytest.raises(RequestError, match=r"model\.safetensors"):
        read_shape(ModelFolder(name="m", folder=tmp_path, source="a test"))


def test_every_task_has_a_model_that_needs_no_hub():
    assert all(known_model(name) for name in DEFAULT_FOR.values())
