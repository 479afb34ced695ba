"""Checkpoint folders of an MLX training, whole or absent: a draft is synced, checksummed and renamed into place.

A folder holds `weights.safetensors`, `optimizer.safetensors`, `state.json` with what else a training needs to continue,
such as the step and the state of the random numbers, and `manifest.json` with the checksums of all of them.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import sys
from typing import Any

_MANIFEST, _STATE = "manifest.json", "state.json"
_CHUNK_BYTES = 1 << 20


def save(folder: str, trees: dict[str, Any], state: dict[str, Any]) -> None:
    """Write a checkpoint of these trees of arrays and this state."""
    mx, utils = sys.modules["mlx.core"], sys.modules["mlx.utils"]
    draft = folder + ".partial"
    shutil.rmtree(draft, ignore_errors=True)
    os.makedirs(draft)
    for name, tree in trees.items():
        mx.save_safetensors(os.path.join(draft, f"{name}.safetensors"), dict(utils.tree_flatten(tree)))
    _write_json(os.path.join(draft, _STATE), state)
    checksums = {}
    for name in os.listdir(draft):
        _sync(os.path.join(draft, name))
        checksums[name] = _checksum(os.path.join(draft, name))
    _write_json(os.path.join(draft, _MANIFEST), checksums)
    _sync(os.path.join(draft, _MANIFEST))
    _sync(draft)
    shutil.rmtree(folder, ignore_errors=True)
    os.replace(draft, folder)
    _sync(os.path.dirname(folder))


def save_file(path: str, tree: Any) -> None:
    """Write one file of weights, whole or not at all."""
    stem, extension = os.path.splitext(path)
    draft = f"{stem}.partial{extension}"  # MLX adds the extension to a name without it
    sys.modules["mlx.core"].save_safetensors(draft, dict(sys.modules["mlx.utils"].tree_flatten(tree)))
    _sync(draft)
    os.replace(draft, path)


def why_broken(folder: str) -> str:
    """What is wrong with a checkpoint; empty if it is intact."""
    try:
        for name, checksum in _read_json(folder, _MANIFEST).items():
            if _checksum(os.path.join(folder, name)) != checksum:
                return f"{name} has another checksum than when it was saved"
    except (OSError, ValueError) as error:
        return repr(error)
    return ""


def state_of(folder: str) -> dict[str, Any]:
    """The state saved in a checkpoint."""
    return _read_json(folder, _STATE)


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


def _write_json(path: str, content: dict[str, Any]) -> None:
    with open(path, "w", encoding="utf-8") as file:
        json.dump(content, file)


def _read_json(folder: str, name: str) -> dict[str, Any]:
    with open(os.path.join(folder, name), encoding="utf-8") as file:
        content = json.load(file)
    if not isinstance(content, dict):
        raise ValueError(f"{name} is not an object")
    return content


def _checksum(path: str) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def _sync(path: str) -> None:
    with contextlib.suppress(OSError):  # a file system without it
        file = os.open(path, os.O_RDONLY)
        try:
            os.fsync(file)
        finally:
            os.close(file)
