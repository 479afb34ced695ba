"""The protocol of predictors, and the predictor of each task."""

from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

import msgspec
import numpy as np
import torch
from safetensors import SafetensorError

from holdfast.core.errors import MachineError, RequestError
from holdfast.core.records import PredictJob
from holdfast.data.shards import TokenArray
from holdfast.data.tokenizer import ModelTokenizer

Row = Mapping[str, Any]
_MODULES = {"classify": "label_texts", "causal": "generate", "two-tower": "search"}


class Predictor(Protocol):
    """A loaded model."""

    rows_at_once: int  # a good number of rows to pass at once

    def predict(self, rows: Sequence[Row]) -> list[dict[str, Any]]:
        """The model's answer to each row."""


def load_predictor(job: PredictJob) -> Predictor:
    """Load the model of a job."""
    if job.task not in _MODULES:
        raise RequestError(f"unknown task {job.task!r}", found=f"tasks: {', '.join(_MODULES)}")
    module = import_module(f"holdfast.engine.predict.{_MODULES[job.task]}")
    options = msgspec.structs.replace(job.options, device=choose_device(job.options.device))
    try:
        predictor: Predictor = module.load(Path(job.model), job.info, options)
    except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
        raise RequestError(
            f"the model in {job.model} cannot be loaded",
            found=f"{type(error).__name__}: {' '.join(str(error).split())[:300]}",
            try_next=("check that all its files are present and complete",),
        ) from error
    return predictor


def choose_device(asked: str) -> str:
    """The requested device; by default CUDA if available, otherwise the CPU."""
    if asked in ("", "auto"):
        return "cuda" if torch.cuda.is_available() else "cpu"
    kind = asked.partition(":")[0]
    has = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}.get(kind)
    if has is None:
        raise RequestError(f"unknown device {asked!r}", found="allowed: auto, cpu, cuda, mps")
    if not has:
        raise MachineError(f"torch cannot use a {kind} device on this machine", try_next=("use --device cpu",))
    return asked


def token_array(tokens: ModelTokenizer, texts: Sequence[str], length: int) -> TokenArray:
    """Texts with their special tokens, each truncated to a length."""
    before, after = tokens.marks
    room = length - len(before) - len(after)
    return as_array([[*before, *body[:room], *after] for body in tokens.encode(texts)])


def as_array(pieces: Sequence[Sequence[int]]) -> TokenArray:
    """Lists of token ids as one array."""
    ends = np.cumsum([0, *map(len, pieces)])
    return TokenArray(np.concatenate([np.asarray(piece, dtype=np.int32) for piece in pieces]), ends)
