"""Lets the layers of BERT and its kin take packed texts the short way on a CPU: see engine.encoder_math.

Where a text has thirty tokens, what surrounds the products of matrices costs as much as they do: hundreds of small
calls, rows moved to and fro, masks made twice. The last layer of an encoder whose head reads first tokens only works
on those; the other tokens answer (keys and values), but what they would become is never computed.

N tokens, R of them that go on, H hidden.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function

from holdfast.engine.encoder_math import layer_backward, layer_forward, scripted
from holdfast.engine.packing import now

_KNOWN = {"BertLayer", "RobertaLayer", "XLMRobertaLayer", "ElectraLayer", "CamembertLayer"}
_NEEDED_BACK = (0, 2, 4, 6, 8, 9, 10, 12, 14, 15)  # of the weights: matrices, and both parts of a norm
_forward, _backward = scripted(layer_forward), scripted(layer_backward)


@dataclass(frozen=True, slots=True)
class How:
    """What a layer works with beside its weights."""

    first_B: Tensor | None  # the only rows that go on; None: all do
    lengths: list[int]
    heads: int
    eps: float
    kept: list[Tensor]
    grow: list[float]


def write_out_layers(base: Any, *, is_narrow: bool) -> bool:
    """Change how this encoder's layers take packed texts; say whether they are of a kind that we know.

    With `is_narrow` the last one gives first tokens only.
    """
    layers = getattr(getattr(base, "encoder", None), "layer", None)
    if not layers or not all(map(_is_known, layers)):
        return False
    for layer in layers:
        _write_out(layer, first_only=is_narrow and layer is layers[-1])
    return True


def _is_known(layer: Any) -> bool:
    if type(layer).__name__ not in _KNOWN or layer.is_decoder:
        return False
    is_gelu = type(layer.intermediate.intermediate_act_fn).__name__ == "GELUActivation"
    return is_gelu and all(type(part) is nn.Linear for part in _parts(layer) if not isinstance(part, nn.LayerNorm))


def _parts(layer: Any) -> list[Any]:
    """What has weights, in the order of the arithmetic."""
    own, attended, inside, fed = layer.attention.self, layer.attention.output, layer.intermediate, layer.output
    return [own.query, own.key, own.value, attended.dense, attended.LayerNorm, inside.dense, fed.dense, fed.LayerNorm]


def _write_out(layer: Any, *, first_only: bool) -> None:
    inner = layer.forward

    def forward(x_1NH: Tensor, *args: Any, **kwargs: Any) -> Any:
        if now.texts is None or x_1NH.device.type != "cpu" or torch.is_autocast_enabled("cpu"):
            return inner(x_1NH, *args, **kwargs)
        texts, own = now.texts, layer.attention.self
        kept, grow = _kept(layer, texts.lengths, x_1NH.shape[1:], first_only=first_only)
        first_B = texts.first_B if first_only else None
        eps = layer.output.LayerNorm.eps
        how = How(first_B, texts.lengths, own.num_attention_heads, eps, kept, grow)
        weights = [weight for part in _parts(layer) for weight in (part.weight, part.bias)]
        return EncoderLayer.apply(x_1NH[0], how, *weights)[None]

    layer.forward = forward


def _kept(layer: Any, lengths: list[int], shape: torch.Size, *, first_only: bool) -> tuple[list[Tensor], list[float]]:
    """What dropout leaves, as the arithmetic takes it."""
    own, dropouts = layer.attention.self, (layer.attention.output.dropout, layer.output.dropout)
    if not layer.training or now.draws is None:
        return [], []
    draws, heads = now.draws, own.num_attention_heads
    rows = len(lengths) if first_only else shape[0]
    sizes = [heads * length * (1 if first_only else length) for length in lengths]
    kept = [draws.keep_texts(own.draw_site, sizes, own.dropout.p)]
    kept += [draws.keep(part.site, rows, shape[1], part.p, by_text=first_only) for part in dropouts]
    return kept, [1 / (1 - p) for p in (own.dropout.p, *(part.p for part in dropouts))]


class EncoderLayer(Function):
    """One layer, over (N, H)."""

    @staticmethod
    def forward(ctx, x_NH, how, *weights):  # type: ignore[no-untyped-def]  # torch gives a context without a type
        given = list(weights)
        out_RH, *saved = _forward(x_NH, how.first_B, given, how.lengths, how.heads, how.eps, how.kept, how.grow)
        ctx.how = how
        ctx.save_for_backward(*saved, *(weights[at] for at in _NEEDED_BACK))
        return out_RH

    @staticmethod
    def backward(ctx, d_out_RH):  # type: ignore[no-untyped-def]  # torch gives a context without a type
        how, saved = ctx.how, list(ctx.saved_tensors)
        saved, weights = saved[: -len(_NEEDED_BACK)], saved[-len(_NEEDED_BACK) :]
        d_x_NH, *gradients = _backward(
            d_out_RH.contiguous(), saved, how.first_B, weights, how.lengths, how.heads, how.kept, how.grow
        )
        return d_x_NH, None, *gradients
