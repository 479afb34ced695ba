"""Reads the size of a model from its configuration and the headers of its weight files; loads nothing."""

import json
import math
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from holdfast.core.errors import RequestError
from holdfast.core.facts import ModelFacts
from holdfast.models.store import ModelFolder

_LONGEST_HEAD = 100_000_000


def read_shape(model: ModelFolder) -> ModelFacts:
    """The size and the architecture of a model."""
    config = _config(model.folder)
    folder = model.folder / "query" if (model.folder / "query").is_dir() else model.folder
    return ModelFacts(
        name=model.name,
        folder=str(model.folder),
        source=model.source,
        kind=str(config.get("model_type", "")),
        parameters=sum(_count(file) for file in sorted(folder.glob("*.safetensors"))),
        layers=_first(config, "num_hidden_layers", "n_layer", "n_layers", "num_layers"),
        hidden=_first(config, "hidden_size", "n_embd", "dim", "d_model"),
        inner=_first(config, "intermediate_size", "n_inner", "hidden_dim", "d_ff")
        or 4 * _first(config, "hidden_size", "n_embd", "dim", "d_model"),
        vocabulary=_first(config, "vocab_size"),
        positions=_first(config, "max_position_embeddings", "n_positions") or None,
    )


def _count(file: Path) -> int:
    """How many numbers a safetensors file contains, by its header."""
    try:
        with file.open("rb") as content:
            (length,) = struct.unpack("<Q", content.read(8))
            if length > _LONGEST_HEAD:
                raise ValueError("its header is implausibly long")
            head: Mapping[str, Any] = json.loads(content.read(length))
        tensors = [about for name, about in head.items() if name != "__metadata__"]
        ends = max((about["data_offsets"][1] for about in tensors), default=0)
        if file.stat().st_size < 8 + length + ends:
            raise ValueError(f"{file.stat().st_size:,} of {8 + length + ends:,} bytes are there")
        return sum(math.prod(about["shape"]) for about in tensors)
    except (OSError, ValueError, KeyError, struct.error, TypeError) as error:
        raise RequestError(
            f"{file} is damaged or incomplete", found=str(error), try_next=["download the model again"], setting="model"
        ) from error


def _config(folder: Path) -> Mapping[str, Any]:
    for place in (folder, folder / "query"):
        try:
            found = json.loads((place / "config.json").read_text(encoding="utf-8"))
        except FileNotFoundError:
            continue
        except (OSError, ValueError) as error:
            raise RequestError(f"{place / 'config.json'} cannot be read", found=str(error)) from error
        if isinstance(found, dict):
            return found
    return {}


def _first(config: Mapping[str, Any], *names: str) -> int:
    found = (config.get(name) for name in names)
    return next((value for value in found if isinstance(value, int)), 0)
