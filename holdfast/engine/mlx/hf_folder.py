"""Reads and writes model folders of Hugging Face with MLX: weights, configuration, and the tokenizer's files."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import mlx.core as mx

from holdfast.core.artifacts import write_artifact
from holdfast.core.errors import RequestError
from holdfast.engine.mlx.mlx_adamw import Weights

_WEIGHTS = "model.safetensors"
_OLD_NAMES = {"LayerNorm.gamma": "LayerNorm.weight", "LayerNorm.beta": "LayerNorm.bias"}
_TOKENIZER_FILES = (
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"),
    *("vocab.txt", "vocab.json", "merges.txt", "sentencepiece.bpe.model", "tokenizer.model", "chat_template.jinja"),
    "generation_config.json",
)


def read_config(folder: Path) -> dict[str, Any]:
    """The model's config.json."""
    found: dict[str, Any] = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    return found


def read_weights(folder: Path) -> Weights:
    """All weights of a folder by name, read when they are used."""
    found: Weights = {}
    for file in sorted(folder.glob("*.safetensors")):
        found |= mx.load(str(file))
    if not found:
        raise RequestError(f"the folder {folder} has no safetensors", setting="model")
    for old, new in _OLD_NAMES.items():
        found = {name.replace(old, new): weight for name, weight in found.items()}
    return found


def write_model(folder: Path, base: Path, config: Mapping[str, Any], weights: Mapping[str, mx.array]) -> None:
    """Write a model that transformers loads, with the tokenizer of the base model."""
    folder.mkdir(parents=True, exist_ok=True)
    mx.save_safetensors(str(folder / _WEIGHTS), dict(weights), metadata={"format": "pt"})
    write_artifact(folder, "config.json", config)
    copy_tokenizer(base, folder)


def copy_tokenizer(base: Path, folder: Path) -> None:
    """Copy the files of the base model's tokenizer."""
    for name in _TOKENIZER_FILES:
        if (base / name).is_file():
            shutil.copyfile(base / name, folder / name)
