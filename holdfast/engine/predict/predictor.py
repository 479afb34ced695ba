"""What every predictor is like, and which one a task has."""

from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from safetensors import SafetensorError

from holdfast.core.errors import MachineError, RequestError
from holdfast.data.shards import TokenArray
from holdfast.data.tokenizer import ModelTokenizer

Row = Mapping[str, Any]
_MODULES = {"classify": "label_texts", "causal": "generate", "two-tower": "search"}


class Predictor(Protocol):
    """A loaded model."""

    rows_at_once: int  # how many rows are worth handing over together

    def predict(self, rows: Sequence[Row]) -> list[dict[str, Any]]:
        """What the model says to each row."""


def load_predictor(folder: Path, task: str, about: Row, options: Row) -> Predictor:
    """Load the model of a folder."""
    if task not in _MODULES:
        raise RequestError(f"there is no task {task!r}", seen=f"tasks: {', '.join(_MODULES)}")
    module = import_module(f"holdfast.engine.predict.{_MODULES[task]}")
    device = choose_device(options.get("device"))
    try:
        predictor: Predictor = module.load(folder, about, {**options, "device": device})
    except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
        raise RequestError(
            f"the model in {folder} cannot be loaded",
            seen=f"{type(error).__name__}: {' '.join(str(error).split())[:300]}",
            try_next=("check that all its files are there and whole",),
        ) from error
    return predictor


def choose_device(asked: str | None) -> str:
    """The device that was asked for, or the fastest that is sure to work."""
    if asked in (None, "", "auto"):
        return "cuda" if torch.cuda.is_available() else "cpu"
    kind = str(asked).partition(":")[0]
    has = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}.get(kind)
    if has is None:
        raise RequestError(f"there is no device {asked!r}", seen="allowed: auto, cpu, cuda, mps")
    if not has:
        raise MachineError(f"this machine has no {kind} device that torch can use", try_next=("--device cpu",))
    return str(asked)


def token_array(tokens: ModelTokenizer, texts: Sequence[str], length: int) -> TokenArray:
    """Texts with the marks around them, each cut to a length."""
    before, after = tokens.marks
    room = length - len(before) - len(after)
    return as_array([[*before, *body[:room], *after] for body in tokens.encode(texts)])


def as_array(pieces: Sequence[Sequence[int]]) -> TokenArray:
    """Token ids one after the other."""
    ends = np.cumsum([0, *map(len, pieces)])
    return TokenArray(np.concatenate([np.asarray(piece, dtype=np.int32) for piece in pieces]), ends)
