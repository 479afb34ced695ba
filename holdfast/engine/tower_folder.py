"""Loads towers to start from, and writes finished ones.

Towers over texts are folders of sentence-transformers (`sentence_folder`); towers over vectors are safetensors with
their shape.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import AutoModel, AutoTokenizer

from holdfast.core.artifacts import write_artifact
from holdfast.core.errors import RequestError, set_to
from holdfast.core.prepared import Manifest
from holdfast.engine.attempt_settings import AttemptSettings
from holdfast.engine.fast.packing_check import proven_offset
from holdfast.engine.fast.recompute import recompute_layers
from holdfast.engine.fast.rng import DropoutRng
from holdfast.engine.retrieval_data import RetrievalData
from holdfast.engine.sentence_folder import (
    ABOUT,
    SIDES,
    TowerFolder,
    read_pooling,
    read_tower_folder,
    tokenizer_folder,
    write_sentence_files,
)
from holdfast.engine.tower_options import TowerOptions
from holdfast.engine.towers import TextTower, TowerShape, VectorTower

_SHAPE, _WEIGHTS = "config.json", "model.safetensors"


def load_towers(
    settings: AttemptSettings, options: TowerOptions, pairs: RetrievalData, rng: DropoutRng | None
) -> tuple[list[nn.Module], float]:
    """One shared tower, or one for queries and one for passages; and the initial temperature."""
    model = Path(settings.model)
    base = read_tower_folder(model)
    sides = [""] if options.towers == "shared" else list(SIDES)
    if base.is_separate and sides == [""]:
        raise RequestError(
            "the base model has separate towers, but a shared tower was requested",
            found=f"{model / ABOUT}",
            try_next=(set_to("towers", "separate"),),
            setting="towers",
        )
    folders = [model / side if base.is_separate else model for side in sides]
    if pairs.is_text:
        towers: list[nn.Module] = [_text_tower(folder, settings, rng) for folder in folders]
    else:
        sizes = pairs.vector_sizes
        if len(folders) == 1 and sizes[0] != sizes[1]:
            raise RequestError(
                "a shared tower cannot take vectors of two sizes",
                found=f"queries have size {sizes[0]}, passages {sizes[1]}",
                try_next=(set_to("towers", "separate"),),
                setting="towers",
            )
        size = options.vectors.size or min(sizes)
        towers = [_vector_tower(folder, given, size, options) for folder, given in zip(folders, sizes, strict=False)]
        if len(towers) == 2 and sizes[0] == sizes[1] and not (folders[0] / _WEIGHTS).is_file():
            towers[1].load_state_dict(towers[0].state_dict())  # new towers start with the same weights
    return towers, options.temperature or base.temperature


def save_towers(
    folder: Path, towers: Sequence[nn.Module], temperature: float, settings: AttemptSettings, manifest: Manifest
) -> None:
    """Write finished towers."""
    folder.mkdir(parents=True, exist_ok=True)
    is_shared = len(towers) == 1
    for tower, side in zip(towers, [""] if is_shared else SIDES, strict=True):
        target = folder / side
        target.mkdir(exist_ok=True)
        if isinstance(tower, TextTower):
            tokenizer = AutoTokenizer.from_pretrained(tokenizer_folder(settings))
            body: Any = tower.body
            body.save_pretrained(target)
            tokenizer.save_pretrained(target)
            size = body.config.hidden_size
            write_sentence_files(target, size, tower.pooling, manifest.max_length, manifest.prefixes)
        elif isinstance(tower, VectorTower):
            write_artifact(target, _SHAPE, tower.shape)
            save_file(dict(tower.state_dict()), target / _WEIGHTS)
    write_artifact(folder, ABOUT, TowerFolder(towers="shared" if is_shared else "separate", temperature=temperature))


def finished_text_towers(settings: AttemptSettings) -> list[TextTower]:
    """The towers of a finished model: one shared tower, or one for queries and one for passages."""
    model = Path(settings.model)
    sides = SIDES if read_tower_folder(model).is_separate else ("",)
    return [_text_tower(model / side, settings, None) for side in sides]


def _text_tower(folder: Path, settings: AttemptSettings, rng: DropoutRng | None) -> TextTower:
    body: Any = AutoModel.from_pretrained(folder, dtype=torch.float32, use_safetensors=True).to(settings.device)
    offset = proven_offset(body) if settings.packing else None
    if settings.gradient_checkpointing:
        recompute_layers(body, settings.device)
    return TextTower(body, read_pooling(folder), offset, rng)


def _vector_tower(folder: Path, size_in: int, size: int, options: TowerOptions) -> VectorTower:
    """The tower of an earlier run, or a new tower."""
    if not (folder / _WEIGHTS).is_file() or not (folder / _SHAPE).is_file():
        return VectorTower(
            TowerShape(size_in=size_in, size=size, hidden=options.vectors.hidden, dropout=options.vectors.dropout)
        )
    shape = msgspec.json.decode((folder / _SHAPE).read_bytes(), type=TowerShape)
    if shape.size_in != size_in:
        raise RequestError(
            "the base model takes vectors of another size",
            found=f"{folder / _SHAPE}: {shape.size_in}; the data has {size_in}",
        )
    tower = VectorTower(shape)
    tower.load_state_dict(load_file(folder / _WEIGHTS))
    return tower
