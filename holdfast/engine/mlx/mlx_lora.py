"""LoRA adapters for models of mlx-lm, with the names and the arithmetic of peft.

N tokens, r rank.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_unflatten

from holdfast.core.artifacts import write_artifact
from holdfast.core.errors import RequestError
from holdfast.engine.mlx.mlx_adamw import Weights
from holdfast.engine.mlx.mlx_dropout import StepMasks
from holdfast.engine.new_weights import uniform_weight

_PREFIX, _SUFFIX = "base_model.model.", ".default.weight"  # around a name, in peft's models
_KNOWN = {"r", "lora_alpha", "lora_dropout", "target_modules"}


class CurrentMasks:
    """The dropout masks of the pass that is being computed; None while nothing is dropped."""

    def __init__(self) -> None:
        self.masks: StepMasks | None = None


class AdaptedLinear(nn.Module):  # type: ignore[misc]  # mlx has no types that mypy finds
    """A frozen linear layer with an adapter."""

    def __init__(self, base: nn.Module, rank: int, scale: float, dropout: float, site: int, now: CurrentMasks):
        super().__init__()
        outputs, inputs = sizes_of(base)
        self.base = base
        self.lora_A, self.lora_B = mx.zeros((rank, inputs)), mx.zeros((outputs, rank))
        self._scale, self._dropout, self._site, self._now = scale, dropout, site, now

    def __call__(self, x: mx.array) -> mx.array:
        """The layer's output plus the adapter's."""
        given = x.astype(mx.float32)
        if self._now.masks and self._dropout:
            given = self._now.masks.tokens(given, self._dropout, self._site)
        added = self._scale * ((given @ self.lora_A.T) @ self.lora_B.T)
        found: mx.array = self.base(x)
        return found + added.astype(found.dtype)

    def merged(self) -> mx.array:
        """The weight of a plain linear layer that computes the same, in float32."""
        return plain_weight(self.base) + self._scale * (self.lora_B @ self.lora_A)


class Adapters:
    """The adapters of one model."""

    def __init__(self, net: Any, lora: Mapping[str, Any], seed: int):
        if unknown := sorted(set(lora) - _KNOWN):
            raise RequestError(
                "unknown LoRA options", found=f"{', '.join(unknown)}; known: {', '.join(sorted(_KNOWN))}"
            )
        self.now = CurrentMasks()
        self._rank, alpha = int(lora.get("r", 8)), float(lora.get("lora_alpha", 8))
        self._scale, self._dropout = alpha / self._rank, float(lora.get("lora_dropout", 0.0))
        self._targets = lora.get("target_modules") or "all-linear"
        self.layers = self._adapt(net)
        self.weights: Weights = {}
        for path, layer in self.layers.items():
            first = f"{_PREFIX}{path}.lora_A{_SUFFIX}"
            self.weights[first] = mx.array(uniform_weight(seed, first, layer.lora_A.shape))
            self.weights[f"{_PREFIX}{path}.lora_B{_SUFFIX}"] = layer.lora_B

    def install(self, weights: Mapping[str, mx.array]) -> None:
        """Compute with these weights from here on."""
        for path, layer in self.layers.items():
            layer.lora_A = weights[f"{_PREFIX}{path}.lora_A{_SUFFIX}"]
            layer.lora_B = weights[f"{_PREFIX}{path}.lora_B{_SUFFIX}"]

    def write_peft(self, folder: Path, base: str) -> None:
        """Write the adapters as peft does."""
        folder.mkdir(parents=True, exist_ok=True)
        plain = {name.replace(_SUFFIX, ".weight"): weight for name, weight in self.weights.items()}
        mx.save_safetensors(str(folder / "adapter_model.safetensors"), plain, metadata={"format": "pt"})
        about = {
            "peft_type": "LORA",
            "task_type": "CAUSAL_LM",
            "base_model_name_or_path": base,
            "r": self._rank,
            "lora_alpha": self._scale * self._rank,
            "lora_dropout": self._dropout,
            "target_modules": sorted({path.rsplit(".", 1)[-1] for path in self.layers}),
            "bias": "none",
            "inference_mode": True,
        }
        write_artifact(folder, "adapter_config.json", about)

    def write_mlx(self, folder: Path, layers: int) -> None:
        """Write the adapters as mlx-lm does, which keeps the matrices transposed."""
        folder.mkdir(parents=True, exist_ok=True)
        found: Weights = {}
        for path, layer in self.layers.items():
            found |= {f"{path}.lora_a": layer.lora_A.T, f"{path}.lora_b": layer.lora_B.T}
        mx.save_safetensors(str(folder / "adapters.safetensors"), found)
        keys = sorted({path.split(".layers.", 1)[-1].split(".", 1)[-1] for path in self.layers})
        numbers = {"rank": self._rank, "scale": self._scale, "dropout": self._dropout}
        about = {"fine_tune_type": "lora", "num_layers": layers, "lora_parameters": {**numbers, "keys": keys}}
        write_artifact(folder, "adapter_config.json", about)

    def _adapt(self, net: Any) -> dict[str, AdaptedLinear]:
        linear = {path: part for path, part in net.named_modules() if isinstance(part, nn.Linear | nn.QuantizedLinear)}
        chosen = {path: part for path, part in linear.items() if self._is_target(path)}
        if not chosen:
            names = sorted({path.rsplit(".", 1)[-1] for path in linear})
            raise RequestError(
                "the LoRA settings do not fit this model",
                found=f"no layer is named {self._targets}; its linear layers: {', '.join(names)}",
                slug="peft-target-modules",
            )
        made = {
            path: AdaptedLinear(chosen[path], self._rank, self._scale, self._dropout, site, self.now)
            for site, path in enumerate(sorted(chosen))
        }
        net.update_modules(tree_unflatten(list(made.items())))
        for layer in made.values():
            layer.unfreeze(keys=["lora_A", "lora_B"], recurse=False)
        return made

    def _is_target(self, path: str) -> bool:
        if self._targets == "all-linear":
            return "lm_head" not in path
        wanted: Iterable[str] = [self._targets] if isinstance(self._targets, str) else self._targets
        return any(path == name or path.endswith(f".{name}") for name in wanted)


def sizes_of(linear: Any) -> tuple[int, int]:
    """Outputs and inputs of a linear layer."""
    outputs, inputs = linear.weight.shape
    return (outputs, inputs * 32 // linear.bits) if isinstance(linear, nn.QuantizedLinear) else (outputs, inputs)


def plain_weight(part: Any) -> mx.array:
    """A layer's weight in float32, also of a quantized layer."""
    if hasattr(part, "scales"):
        biases, mode = part.get("biases"), getattr(part, "mode", "affine")
        found = mx.dequantize(part.weight, part.scales, biases, group_size=part.group_size, bits=part.bits, mode=mode)
        return found.astype(mx.float32)
    return part.weight.astype(mx.float32)
