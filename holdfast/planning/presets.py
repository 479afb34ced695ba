"""Defaults for common kinds of projects. Requested settings take precedence."""

import dataclasses
from collections.abc import Mapping

from holdfast.core.request import TrainRequest

PRESETS: Mapping[str, Mapping[str, object]] = {
    "medical-literature": {
        "task": "classify",
        "model": "microsoft/BiomedNLP-BiomedBERT-base-uncased-abstract-fulltext",
        "epochs": 4,
        "batch_size": 16,
        "lr": 3e-5,
        "overlong": "window",
    },
    "instruct": {
        "task": "causal",
        "lora": True,
        "lora_r": 16,
        "lora_alpha": 32,
        "lora_dropout": 0.05,
        "epochs": 2,
        "batch_size": 16,
        "lr": 2e-4,
        "lr_scheduler_type": "cosine",
        "max_length": 1024,
    },
    "retriever": {"task": "two-tower", "epochs": 3, "batch_size": 64, "lr": 5e-5, "mining": True},
}


def with_preset(request: TrainRequest) -> TrainRequest:
    """Fill the settings that were not given from the requested preset."""
    defaults = PRESETS.get(request.preset or "", {})
    if request.lora is False:
        defaults = {name: value for name, value in defaults.items() if not name.startswith("lora")}
    open_ones = {name: value for name, value in defaults.items() if getattr(request, name) is None}
    return dataclasses.replace(request, **open_ones) if open_ones else request  # type: ignore[arg-type]  # a test reads each


def is_of_preset(request: TrainRequest, name: str) -> bool:
    """Whether a setting has the preset's value, which is dropped if the model does not allow it."""
    defaults = PRESETS.get(request.preset or "", {})
    return name in defaults and getattr(request, name) == defaults[name]
