"""Where the hub's cache is, and what lies in it."""

import json
from pathlib import Path

import pytest

from holdfast.machine.hub import cached_models, hub_cache_folder


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({"HF_HUB_CACHE": "/a", "HF_HOME": "/b"}, "/a"),
        ({"HUGGINGFACE_HUB_CACHE": "/old", "HF_HOME": "/b"}, "/old"),
        ({"HF_HOME": "/b"}, "/b/hub"),
        ({"XDG_CACHE_HOME": "/x"}, "/x/huggingface/hub"),
        ({"HF_HOME": ""}, str(Path.home() / ".cache/huggingface/hub")),
        ({}, str(Path.home() / ".cache/huggingface/hub")),
    ],
)
def test_the_newest_variable_wins(environ, expected):
    assert str(hub_cache_folder(environ)) == expected


@pytest.fixture
def cache(tmp_path):
    """A cache with one whole model of 1000 bytes, as the hub lays it out."""
    model = tmp_path / "models--org--tiny-model"
    snapshot = model / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    (model / "blobs").mkdir()
    (model / "blobs" / "111").write_bytes(b"x" * 1000)
    (snapshot / "model.safetensors").symlink_to(model / "blobs" / "111")
    (tmp_path / "datasets--org--data").mkdir()
    (tmp_path / "version.txt").write_text("1")
    return tmp_path


def only_model(cache):
    (model,) = cached_models(cache)
    return model


def test_a_model_is_named_and_each_blob_counts_once(cache):
    model = only_model(cache)
    assert (model.name, model.bytes, model.complete) == ("org/tiny-model", 1000, True)


def test_an_unfinished_blob_is_an_incomplete_download(cache):
    (cache / "models--org--tiny-model/blobs/222.incomplete").write_bytes(b"x")
    assert not only_model(cache).complete


def test_a_link_to_a_blob_that_is_gone_is_incomplete(cache):
    (cache / "models--org--tiny-model/blobs/111").unlink()
    assert not only_model(cache).complete


def test_a_model_without_a_snapshot_is_incomplete(cache):
    (cache / "models--org--empty/blobs").mkdir(parents=True)
    assert [model.complete for model in cached_models(cache)] == [False, True]


def test_a_missing_shard_is_incomplete_unless_another_format_is_whole(cache):
    snapshot = cache / "models--org--tiny-model/snapshots/abc"
    index = {"weight_map": {"a": "pytorch_model-00001-of-00002.bin", "b": "pytorch_model-00002-of-00002.bin"}}
    (snapshot / "pytorch_model.bin.index.json").write_text(json.dumps(index))
    assert not only_model(cache).complete
    (snapshot / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": "model.safetensors"}}))
    assert only_model(cache).complete
    (snapshot / "model.safetensors.index.json").write_text("cut off {")
    assert not only_model(cache).complete
