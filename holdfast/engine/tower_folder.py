"""Loads towers to start from, and writes finished ones.

A shared tower over texts is a sentence-transformers folder; separate towers are in `query` and `passage`. Towers over
vectors are safetensors with their shape. `two_tower.json` says which kind it is, so that a later run can start from it.

Files of sentence-transformers are written in their older form, which every version since 2.0 reads.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import AutoModel, AutoTokenizer, PreTrainedTokenizerBase

from holdfast.core.artifacts import write_artifact
from holdfast.core.errors import RequestError, set_to
from holdfast.core.prepared import Manifest
from holdfast.engine.attempt_settings import AttemptSettings
from holdfast.engine.fast.packing_check import proven_offset
from holdfast.engine.fast.recompute import recompute_layers
from holdfast.engine.fast.rng import DropoutRng
from holdfast.engine.retrieval_data import RetrievalData
from holdfast.engine.tower_options import TowerOptions
from holdfast.engine.towers import TextTower, TowerShape, VectorTower

_SIDES = ("query", "passage")
_ABOUT = "two_tower.json"
_SHAPE, _WEIGHTS = "config.json", "model.safetensors"


class TowerFolder(msgspec.Struct, frozen=True, kw_only=True):
    """What `two_tower.json` says about a model folder; the defaults are those of a plain encoder."""

    towers: Literal["shared", "separate"] = "shared"
    temperature: float = 0.05

    @property
    def is_separate(self) -> bool:
        """Whether queries and passages have different towers."""
        return self.towers == "separate"


def load_towers(
    settings: AttemptSettings, options: TowerOptions, pairs: RetrievalData, rng: DropoutRng | None
) -> tuple[list[nn.Module], float]:
    """One shared tower, or one for queries and one for passages; and the initial temperature."""
    model = Path(settings.model)
    base = read_tower_folder(model)
    sides = [""] if options.towers == "shared" else list(_SIDES)
    if base.is_separate and sides == [""]:
        raise RequestError(
            "the base model has separate towers, but a shared tower was requested",
            found=f"{model / _ABOUT}",
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
    for tower, side in zip(towers, [""] if is_shared else _SIDES, strict=True):
        target = folder / side
        target.mkdir(exist_ok=True)
        if isinstance(tower, TextTower):
            tokenizer = AutoTokenizer.from_pretrained(tokenizer_folder(settings))
            write_sentence_folder(target, tower.body, tokenizer, tower.pooling, manifest.max_length, manifest.prefixes)
        elif isinstance(tower, VectorTower):
            write_artifact(target, _SHAPE, tower.shape)
            save_file(dict(tower.state_dict()), target / _WEIGHTS)
    write_artifact(folder, _ABOUT, TowerFolder(towers="shared" if is_shared else "separate", temperature=temperature))


def tokenizer_folder(settings: AttemptSettings) -> Path:
    """The folder of the base model's tokenizer."""
    model = Path(settings.model)
    return model / _SIDES[0] if read_tower_folder(model).is_separate else model


def finished_text_towers(settings: AttemptSettings) -> list[TextTower]:
    """The towers of a finished model: one shared tower, or one for queries and one for passages."""
    model = Path(settings.model)
    sides = _SIDES if read_tower_folder(model).is_separate else ("",)
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


def read_tower_folder(model: Path) -> TowerFolder:
    """What a model folder says about its towers."""
    file = model / _ABOUT
    return msgspec.json.decode(file.read_bytes(), type=TowerFolder) if file.is_file() else TowerFolder()


_POOLING_FOLDER = "1_Pooling"
_MODULES = (("", "Transformer"), (_POOLING_FOLDER, "Pooling"), ("2_Normalize", "Normalize"))
_FLAGS = {
    "cls": "pooling_mode_cls_token",
    "mean": "pooling_mode_mean_tokens",
    "max": "pooling_mode_max_tokens",
    "mean_sqrt_len_tokens": "pooling_mode_mean_sqrt_len_tokens",
    "weightedmean": "pooling_mode_weightedmean_tokens",
    "lasttoken": "pooling_mode_lasttoken",
}
_KNOWN_POOLING = ("mean", "cls")


def read_pooling(folder: Path) -> str:
    """How the model of a folder pools its token states: "mean" (the default) or "cls"."""
    config = folder / _POOLING_FOLDER / "config.json"
    if not config.is_file():
        return "mean"
    found = json.loads(config.read_text(encoding="utf-8"))
    flagged = [name for name, flag in _FLAGS.items() if found.get(flag)]
    modes = [found["pooling_mode"]] if "pooling_mode" in found else flagged
    if len(modes) != 1 or modes[0] not in _KNOWN_POOLING:
        raise RequestError(
            "the model's pooling is not supported",
            found=f"{config}: {', '.join(map(str, modes)) or 'nothing'}; known: {', '.join(_KNOWN_POOLING)}",
        )
    return str(modes[0])


def write_sentence_folder(
    folder: Path,
    body: Any,
    tokenizer: PreTrainedTokenizerBase,
    pooling: str,
    max_length: int,
    prefixes: Mapping[str, str],
) -> None:
    """Write an encoder so that `SentenceTransformer(folder)` and `AutoModel.from_pretrained(folder)` load it."""
    body.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    (folder / _POOLING_FOLDER).mkdir(exist_ok=True)
    modules = [
        {"idx": at, "name": str(at), "path": path, "type": f"sentence_transformers.models.{name}"}
        for at, (path, name) in enumerate(_MODULES)
    ]
    write_artifact(folder, "modules.json", modules)
    flags = {flag: name == pooling for name, flag in _FLAGS.items()}
    write_artifact(
        folder / _POOLING_FOLDER, "config.json", {"word_embedding_dimension": body.config.hidden_size, **flags}
    )
    write_artifact(folder, "sentence_bert_config.json", {"max_seq_length": max_length, "do_lower_case": False})
    prompts = {"query": prefixes.get("query", ""), "document": prefixes.get("passage", "")}
    about = {"similarity_fn_name": "cosine", "prompts": prompts, "default_prompt_name": None}
    write_artifact(folder, "config_sentence_transformers.json", about)
