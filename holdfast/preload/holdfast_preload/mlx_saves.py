"""The content of an MLX training's checkpoint folder, which `whole_folders` writes whole or not at all.

A folder holds `weights.safetensors`, `optimizer.safetensors` and `state.json` with what else a training needs to
continue, such as the step and the state of the random numbers.
"""

from __future__ import annotations

import os
import sys
from typing import Any

from holdfast_preload import whole_folders

_STATE = "state.json"


def save(folder: str, trees: dict[str, Any], state: dict[str, Any]) -> None:
    """Write a checkpoint of these trees of arrays and this state."""

    def fill(draft: str) -> None:
        mx, utils = sys.modules["mlx.core"], sys.modules["mlx.utils"]
        for name, tree in trees.items():
            mx.save_safetensors(os.path.join(draft, f"{name}.safetensors"), dict(utils.tree_flatten(tree)))
        whole_folders.write_json(os.path.join(draft, _STATE), state)

    whole_folders.write(folder, fill)


def save_file(path: str, tree: Any) -> None:
    """Write one file of weights, whole or not at all."""
    stem, extension = os.path.splitext(path)
    draft = f"{stem}.partial{extension}"  # MLX adds the extension to a name without it
    sys.modules["mlx.core"].save_safetensors(draft, dict(sys.modules["mlx.utils"].tree_flatten(tree)))
    whole_folders.sync(draft)
    os.replace(draft, path)


def state_of(folder: str) -> dict[str, Any]:
    """The state saved in a checkpoint."""
    return whole_folders.read_json(folder, _STATE)


def load(folder: str, name: str) -> dict[str, Any]:
    """The arrays of one tree of a checkpoint by their paths in the tree, read into memory."""
    mx = sys.modules["mlx.core"]
    arrays: dict[str, Any] = mx.load(os.path.join(folder, f"{name}.safetensors"))
    mx.eval(list(arrays.values()))
    return arrays


def fill(tree: Any, arrays: dict[str, Any], prefix: str = "") -> None:
    """Replace the arrays of a tree in place: compiled functions hold on to its dicts and lists."""
    for key, value in tree.items() if isinstance(tree, dict) else enumerate(tree):
        path = f"{prefix}{key}"
        if path in arrays:
            tree[key] = arrays[path]
        elif isinstance(value, (dict, list)):
            fill(value, arrays, f"{path}.")


def shapes(arrays: dict[str, Any]) -> dict[str, Any]:
    """Names, shapes and types of arrays: what must agree before a checkpoint is used."""
    return {name: (tuple(array.shape), str(array.dtype)) for name, array in arrays.items()}
