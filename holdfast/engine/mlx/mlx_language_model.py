"""Loads a causal language model from mlx-lm's model files, over packed rows, in full precision or on a 4-bit base.

R rows, T tokens of a row, A target tokens, H hidden, V vocabulary.
"""

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx.utils import tree_flatten

from holdfast.core.errors import MachineError, RequestError, install, set_to
from holdfast.engine.attempt_settings import AttemptSettings
from holdfast.engine.batches import BatchPart
from holdfast.engine.mlx.hf_folder import read_config, read_weights
from holdfast.engine.mlx.mlx_adamw import Weights
from holdfast.engine.mlx.text_rows import TextRows, pack_rows

_SAME_CODE = {"mistral": "llama"}  # as in mlx-lm's own table
_GROUP_SIZE, _BITS = 64, 4
_BLOCK = 256  # tokens of the vocabulary
_TRIAL = (60, 60, 23, 9)  # tokens of texts that fill three rows


class LanguageModel:
    """A model of mlx-lm, and how it takes packed rows."""

    def __init__(self, settings: AttemptSettings):
        self.folder = Path(settings.model)
        self.config = read_config(self.folder)
        _refuse_dropout(self.config)
        self.net, self.has_own_names = _load(self.folder, self.config, settings)
        if settings.gradient_checkpointing:
            for layer in self.net.layers:
                _recompute(layer)
        self._windows: set[int] = set()  # that the model's attention asked for
        self._mask_axes = 4
        self._head = _head_of(self.net)
        computes_packed = self._computes_packed()
        self.is_packed = settings.packing and computes_packed

    @property
    def quantization(self) -> Mapping[str, Any] | None:
        """How the frozen weights are quantized; None for weights as they are."""
        found: Mapping[str, Any] | None = self.config.get("quantization")
        return found

    def require_windows(self, longest: int) -> None:
        """Refuse texts longer than the model's attention window where mlx-lm's file of the model leaves it out."""
        window = int(self.config.get("sliding_window") or 0) if self.config.get("use_sliding_window", True) else 0
        if window and longest > window and window not in self._windows:
            raise RequestError(
                "mlx-lm leaves out the attention window of this model, so longer texts would be learned differently",
                found=f"sliding_window is {window}, the longest text has {longest} tokens",
                try_next=(set_to("backend", "torch"), set_to("max_length", window)),
                setting="model",
            )

    def logits(self, rows: TextRows, at_A: mx.array) -> mx.array:
        """The scores of the next token at these places of the flattened rows, (A, V)."""
        return self.score(self.states(rows)[at_A])

    def states(self, rows: TextRows) -> mx.array:
        """What the head reads, flattened: (R x T, H)."""
        caches = [_RowsMask(rows, self._windows, self._mask_axes)] * len(self.net.layers)
        body = self.net.model if self._head else self.net
        found_RTH: mx.array = body(rows.ids_RT, cache=caches)
        return found_RTH.reshape(-1, found_RTH.shape[-1])

    def score(self, states_AH: mx.array) -> mx.array:
        """The head's scores in float32."""
        return (self._head(states_AH) if self._head else states_AH).astype(mx.float32)

    def _computes_packed(self) -> bool:
        """Whether packed texts get the same scores as each text alone, with a mask of either form."""
        for axes in (4, 5):
            self._mask_axes = axes
            try:
                if self._agrees():
                    return True
            except ValueError:  # the shapes do not fit
                continue
        self._mask_axes = 2  # for one text in one row
        return False

    def _agrees(self) -> bool:
        draws, at = np.random.default_rng(0), np.arange(len(_TRIAL))
        texts = [draws.integers(0, self.config["vocab_size"], length).astype(np.int32) for length in _TRIAL]
        rows = pack_rows(texts, BatchPart(at, at, at))
        for text, first in zip(texts, np.array(rows.first_B).tolist(), strict=False):
            expected_TV = self.net(mx.array(text)[None])[0].astype(mx.float32)
            found_TV = self.logits(rows, mx.arange(first, first + len(text)))
            if not mx.allclose(found_TV, expected_TV, rtol=1e-2, atol=1e-2 * mx.abs(expected_TV).max().item()):
                return False
        return True


class _RowsMask:
    """Takes the place of mlx-lm's cache of keys and values: it keeps nothing, but its mask ends at each text."""

    offset = 0

    def __init__(self, rows: TextRows, windows: set[int], axes: int):
        self._rows, self._windows, self._axes = rows, windows, axes

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        return keys, values

    def make_mask(self, tokens: int, window_size: int | None = None, **_: object) -> mx.array:
        if window_size:
            self._windows.add(window_size)
        at_T = mx.arange(tokens)
        behind_TT = at_T[:, None] - at_T
        seen_TT = behind_TT >= 0 if not window_size else (behind_TT >= 0) & (behind_TT < window_size)
        seen_R1TT = self._rows.seen() & seen_TT
        if self._axes == 2:
            return seen_R1TT[0, 0]
        return seen_R1TT if self._axes == 4 else seen_R1TT[:, None]  # some models keep groups of heads apart


def model_module(model_type: str) -> Any:
    """mlx-lm's file for a kind of model, loaded without the package's own imports: they load transformers and torch."""
    if "mlx_lm" not in sys.modules:
        spec = find_spec("mlx_lm")
        if spec is None or spec.submodule_search_locations is None:
            raise MachineError(
                "language models need mlx-lm", found="mlx-lm is not installed", try_next=(install("mlx"),)
            )
        package = ModuleType("mlx_lm")
        package.__path__ = list(spec.submodule_search_locations)
        sys.modules["mlx_lm"] = package
    try:
        return import_module(f"mlx_lm.models.{_SAME_CODE.get(model_type, model_type)}")
    except ModuleNotFoundError as error:
        raise RequestError(
            "mlx-lm does not know this language model",
            found=f"its architecture is {model_type}",
            try_next=(set_to("backend", "torch"),),
            setting="model",
        ) from error


def _load(folder: Path, config: dict[str, Any], settings: AttemptSettings) -> tuple[Any, bool]:
    """The model with its weights, and whether their names are those of the folder."""
    module = model_module(str(config["model_type"]))
    config.update(_older_names(config))
    net = module.Model(module.ModelArgs.from_dict(config))
    given = read_weights(folder)
    weights: Weights = net.sanitize(dict(given)) if hasattr(net, "sanitize") else given
    quantization = config.get("quantization")
    if quantization:
        nn.quantize(
            net,
            group_size=quantization["group_size"],
            bits=quantization["bits"],
            mode=quantization.get("mode", "affine"),
            class_predicate=lambda path, part: quantization.get(path, f"{path}.scales" in weights),
        )
    is_half = settings.precision == "bf16" and settings.options.get("lora")
    dtype = None if is_half else mx.float32  # frozen weights stay as they are stored where the run computes in that
    weights = {
        name: weight if dtype is None or not mx.issubdtype(weight.dtype, mx.floating) else weight.astype(dtype)
        for name, weight in weights.items()
    }
    net.load_weights(list(weights.items()))
    if settings.load_in_4bit and not quantization:
        nn.quantize(net, group_size=_GROUP_SIZE, bits=_BITS, class_predicate=_can_be_quantized)
        config["quantization"] = {"group_size": _GROUP_SIZE, "bits": _BITS, "mode": "affine"}
    net.freeze()
    mx.eval(net.parameters())
    own = {name for name, _ in tree_flatten(net.parameters())}
    return net, bool(config.get("quantization")) or own <= given.keys()


def _older_names(config: Mapping[str, Any]) -> dict[str, Any]:
    """Settings that transformers 5 keeps in `rope_parameters`, under the names that mlx-lm and transformers 4 read.

    mlx-lm silently takes its own defaults for them otherwise. transformers 5 reads a configuration that has both.
    """
    given = config.get("rope_parameters") or {}
    by_layer = {kind: one for kind, one in given.items() if isinstance(one, dict)}
    rope = by_layer.get("full_attention", {}) if by_layer else given
    found: dict[str, Any] = {
        name: rope[name] for name in ("rope_theta", "partial_rotary_factor") if name in rope and name not in config
    }
    scaling = {name: value for name, value in rope.items() if name not in ("rope_theta", "partial_rotary_factor")}
    if scaling.get("rope_type", "default") != "default" and not config.get("rope_scaling"):
        found["rope_scaling"] = scaling
    if "rope_theta" in by_layer.get("sliding_attention", {}):
        found.setdefault("rope_local_base_freq", by_layer["sliding_attention"]["rope_theta"])
    kinds = config.get("layer_types") or []
    if by_layer and "full_attention" in kinds and "sliding_window_pattern" not in config:
        found["sliding_window_pattern"] = kinds.index("full_attention") + 1
    return found


def token_losses(logits_AV: mx.array, targets_A: mx.array) -> mx.array:
    """The cross-entropy of each target.

    In blocks, because MLX adds one value after the other on a CPU: over 49,152 tokens the loss was 6e-5 off.
    """
    blocks_ABv = mx.pad(logits_AV, ((0, 0), (0, -logits_AV.shape[-1] % _BLOCK)), constant_values=-mx.inf)
    blocks_ABv = blocks_ABv.reshape(len(logits_AV), -1, _BLOCK)
    scores_A = mx.take_along_axis(logits_AV, targets_A[:, None], axis=-1)[:, 0]
    return mx.logsumexp(mx.logsumexp(blocks_ABv, axis=-1), axis=-1) - scores_A


def _can_be_quantized(path: str, part: nn.Module) -> bool:
    """Whether a part is held in 4 bits. The embeddings are not: they are small, and often also the output layer."""
    return isinstance(part, nn.Linear) and part.weight.shape[-1] % _GROUP_SIZE == 0 and "lm_head" not in path


def _head_of(net: Any) -> Callable[[mx.array], mx.array] | None:
    """The output layer, if the scores of the whole model are known to be the head's scores of the body's states."""
    body = getattr(net, "model", None)
    if body is None or not hasattr(body, "embed_tokens"):
        return None
    heads = [body.embed_tokens.as_linear, *([net.lm_head] if hasattr(net, "lm_head") else [])]
    softcap = getattr(net, "final_logit_softcapping", None) or getattr(net.args, "final_logit_softcapping", None)
    ids = mx.arange(5)[None]
    expected, states = net(ids), body(ids, None)

    def capped(head: Callable[[mx.array], mx.array]) -> Callable[[mx.array], mx.array]:
        return lambda states_AH: mx.tanh(head(states_AH) / softcap) * softcap if softcap else head(states_AH)

    scale = float(mx.abs(expected).max().item())
    for head in map(capped, heads):
        found = head(states)
        if found.shape == expected.shape and mx.allclose(found, expected, rtol=1e-3, atol=1e-3 * scale):
            return head
    return None


def _refuse_dropout(config: Mapping[str, Any]) -> None:
    """Refuse a model whose own dropout mlx-lm leaves out: it would learn something else."""
    dropped = {
        name: value
        for name, value in config.items()
        if (name.endswith(("_dropout", "_pdrop")) or name == "dropout") and isinstance(value, float) and value > 0
    }
    if dropped:
        raise RequestError(
            "mlx-lm leaves out the dropout of this model",
            found=", ".join(f"{name} is {value}" for name, value in dropped.items()),
            try_next=(set_to("backend", "torch"),),
            setting="model",
        )


def _recompute(layer: Any) -> None:
    """Let a layer keep only its inputs for the backward pass, and compute the rest again."""
    compute = type(layer).__call__

    def again(self: Any, x: mx.array, mask: Any = None, cache: Any = None) -> mx.array:
        def inner(parameters: Any, x: mx.array, mask: Any) -> mx.array:
            self.update(parameters)
            found: mx.array = compute(self, x, mask, cache)
            return found

        found: mx.array = mx.checkpoint(inner)(self.trainable_parameters(), x, mask)
        return found

    layer.__class__ = type(type(layer).__name__, (type(layer),), {"__call__": again})
