"""Checkpoint folders of MLX trainings: what is written is read back, in place, and damage is found."""

import pytest

mx = pytest.importorskip("mlx.core")
from holdfast_preload import mlx_saves, whole_folders  # noqa: E402
from mlx.utils import tree_flatten  # noqa: E402


@pytest.fixture
def trees() -> dict:
    weights = {"layers": [{"a": mx.arange(4, dtype=mx.float32)}, {}, {"b": mx.ones((2, 2), dtype=mx.bfloat16)}]}
    optimizer = {"step": mx.array(7, mx.uint64), "layers": [{"a": {"m": mx.zeros(4)}}]}
    return {"weights": weights, "optimizer": optimizer}


def test_arrays_and_state_are_read_back(tmp_path, trees):
    folder = str(tmp_path / "step-7")
    mlx_saves.save(folder, trees, {"step": 7, "random": [1, 2.5, "x"]})
    assert whole_folders.why_broken(folder) == ""
    assert mlx_saves.state_of(folder) == {"step": 7, "random": [1, 2.5, "x"]}
    for name, tree in trees.items():
        found, known = mlx_saves.load(folder, name), dict(tree_flatten(tree))
        assert mlx_saves.shapes(found) == mlx_saves.shapes(known)
        assert all(mx.array_equal(found[path], array) for path, array in known.items())
    assert [path.name for path in tmp_path.iterdir()] == ["step-7"]


def test_new_checkpoint_replaces_the_old_one_completely(tmp_path, trees):
    folder = tmp_path / "step-7"
    (tmp_path / "step-7.partial").mkdir()
    (tmp_path / "step-7.partial/rest").touch()
    for step in (7, 8):
        mlx_saves.save(str(folder), trees, {"step": step})
    assert mlx_saves.state_of(str(folder)) == {"step": 8}
    assert not (folder / "rest").exists()


@pytest.mark.parametrize("name", ["weights.safetensors", "optimizer.safetensors", "state.json", "manifest.json"])
@pytest.mark.parametrize("damage", ["flip", "cut", "remove"])
def test_damage_to_any_file_is_found(tmp_path, trees, name, damage):
    mlx_saves.save(str(tmp_path / "one"), trees, {"step": 7})
    file = tmp_path / "one" / name
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    if damage == "remove":
        file.unlink()
    else:
        file.write_bytes(content if damage == "flip" else content[:-1])
    assert whole_folders.why_broken(str(tmp_path / "one"))


def test_fill_keeps_the_containers_that_compiled_functions_hold(trees):
    tree = trees["weights"]
    inner, new = tree["layers"][0], mx.full((4,), 9.0)
    mlx_saves.fill(tree, {"layers.0.a": new})
    assert tree["layers"][0] is inner
    assert mx.array_equal(inner["a"], new)
    assert mx.array_equal(tree["layers"][2]["b"], mx.ones((2, 2)))
