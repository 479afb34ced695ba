"""Loads the causal language model to start from, with LoRA adapters if requested."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM

from holdfast.core.errors import RequestError, set_to
from holdfast.engine.attempt_settings import AttemptSettings
from holdfast.engine.fast.packing_check import proven_offset
from holdfast.engine.fast.recompute import recompute_layers
from holdfast.engine.new_weights import uniform_weight


def load_language_model(settings: AttemptSettings) -> tuple[nn.Module, int | None]:
    """The model on its device, and where its positions start when texts are packed (None if it cannot be packed)."""
    if settings.load_in_4bit:
        raise RequestError(
            "only the MLX backend holds frozen weights in 4 bits",
            found=f"device {settings.device}",
            try_next=(set_to("backend", "mlx"),),
            setting="load_in_4bit",
        )
    model: Any = AutoModelForCausalLM.from_pretrained(settings.model, dtype=torch.float32, use_safetensors=True)
    model = model.to(settings.load_device)
    offset = proven_offset(model.base_model) if settings.packing else None
    lora: Any = settings.options.get("lora")
    if lora:
        model = _with_adapters(model.to(_frozen_dtype(settings)), dict(lora), settings.seed)
    if settings.gradient_checkpointing:
        recompute_layers(model, settings.device)
    if settings.compile:
        base = plain_model(model).base_model
        for layer in base.layers if hasattr(base, "layers") else base.h:
            layer.compile(dynamic=True)
    return model, offset


def plain_model(model: Any) -> Any:
    """The model without peft's wrapper."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model


def _frozen_dtype(settings: AttemptSettings) -> torch.dtype:
    """The precision of frozen weights: as stored if the GPU computes in it, otherwise float32."""
    if not settings.is_on_cuda or settings.precision != "bf16":
        return torch.float32
    stored_dtype = AutoConfig.from_pretrained(settings.model).dtype
    return torch.bfloat16 if stored_dtype in (torch.bfloat16, "bfloat16") else torch.float32


def _with_adapters(model: Any, lora: Mapping[str, Any], seed: int) -> Any:
    from peft import LoraConfig, get_peft_model

    try:
        adapted = get_peft_model(model, LoraConfig(task_type="CAUSAL_LM", **lora))
    except ValueError as error:
        layers = sorted(
            {name.rsplit(".", 1)[-1] for name, part in model.named_modules() if isinstance(part, nn.Linear)}
        )
        raise RequestError(
            "the LoRA settings do not fit this model",
            found=f"{error}; its linear layers: {', '.join(layers)}",
            slug="peft-target-modules",
        ) from error
    if "init_lora_weights" not in lora:
        _start_adapters(adapted, seed)
    return adapted


@torch.no_grad()
def _start_adapters(model: nn.Module, seed: int) -> None:
    """Give the adapters their first values, the same ones in every backend; peft starts the second matrix at zero."""
    for name, weight in model.named_parameters():
        if ".lora_A." in name:
            weight.copy_(torch.from_numpy(uniform_weight(seed, name, tuple(weight.shape))))
