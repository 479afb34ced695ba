"""Faster layers for BERT and similar encoders on packed texts.

On a CPU whole layers are replaced by the functions of `encoder_math`: with thirty tokens per text, the overhead around
the matrix products (hundreds of small calls, rows moved back and forth, masks made twice) costs as much as they do.

Where the head reads first tokens only, the last layer computes only those. The other tokens still provide keys and
values, but neither their output nor its gradient is computed: a seventh of the arithmetic of six layers.

N tokens, R of them in the output, B texts, H hidden; in attention R rows (heads of tokens) with d values each.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function

from holdfast.engine.fast.attention import Attend, AttentionSpan
from holdfast.engine.fast.encoder_math import layer_backward, layer_forward, scripted
from holdfast.engine.fast.packing import dropped_weights, flash, has_flash, now

_KNOWN = {"BertLayer", "RobertaLayer", "XLMRobertaLayer", "ElectraLayer", "CamembertLayer"}
_KNOWN_LAST = {*_KNOWN, "BertGenerationLayer"}
_NEEDED_BACK = (0, 2, 4, 6, 8, 9, 10, 12, 14, 15)  # of the weights: matrices, and both parts of a norm
_forward, _backward = scripted(layer_forward), scripted(layer_backward)


@dataclass(frozen=True, slots=True)
class LayerInputs:
    """What a layer needs besides its weights."""

    first_B: Tensor | None  # the only rows in the output; None for all
    lengths: list[int]
    heads: int
    eps: float
    kept: list[Tensor]
    grow: list[float]


def write_out_layers(base: Any, *, is_narrow: bool) -> bool:
    """Replace this encoder's layers for packed texts on a CPU; return whether they are of a known kind.

    With `is_narrow` the last layer returns first tokens only.
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
    """The modules that have weights, in the order of the arithmetic."""
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
        inputs = LayerInputs(first_B, texts.lengths, own.num_attention_heads, eps, kept, grow)
        weights = [weight for part in _parts(layer) for weight in (part.weight, part.bias)]
        return EncoderLayer.apply(x_1NH[0], inputs, *weights)[None]

    layer.forward = forward


def _kept(layer: Any, lengths: list[int], shape: torch.Size, *, first_only: bool) -> tuple[list[Tensor], list[float]]:
    """The dropout masks of a layer and their scales, as `layer_forward` takes them."""
    own, dropouts = layer.attention.self, (layer.attention.output.dropout, layer.output.dropout)
    if not layer.training or now.rng is None:
        return [], []
    rng, heads = now.rng, own.num_attention_heads
    rows = len(lengths) if first_only else shape[0]
    sizes = [heads * length * (1 if first_only else length) for length in lengths]
    kept = [rng.keep_texts(own.rng_site, sizes, own.dropout.p)]
    kept += [rng.keep(part.site, rows, shape[1], part.p, by_text=first_only) for part in dropouts]
    return kept, [1 / (1 - p) for p in (own.dropout.p, *(part.p for part in dropouts))]


class EncoderLayer(Function):
    """One layer, over (N, H)."""

    @staticmethod
    def forward(ctx, x_NH, inputs, *weights):  # type: ignore[no-untyped-def]  # torch gives a context without a type
        sizes, dropout = (inputs.lengths, inputs.heads), (inputs.kept, inputs.grow)
        out_RH, *saved = _forward(x_NH, inputs.first_B, list(weights), *sizes, inputs.eps, *dropout)
        ctx.inputs = inputs
        ctx.save_for_backward(*saved, *(weights[at] for at in _NEEDED_BACK))
        return out_RH

    @staticmethod
    def backward(ctx, d_out_RH):  # type: ignore[no-untyped-def]  # torch gives a context without a type
        inputs, saved = ctx.inputs, list(ctx.saved_tensors)
        sizes, dropout = (inputs.lengths, inputs.heads), (inputs.kept, inputs.grow)
        saved, weights = saved[: -len(_NEEDED_BACK)], saved[-len(_NEEDED_BACK) :]
        d_x_NH, *gradients = _backward(d_out_RH.contiguous(), saved, inputs.first_B, weights, *sizes, *dropout)
        return d_x_NH, None, *gradients


def narrow_last_layer(base: Any) -> bool:
    """Let this encoder's last layer compute only the first token of each packed text; return whether it is known."""
    layers = getattr(getattr(base, "encoder", None), "layer", None)
    if not layers or type(layers[-1]).__name__ not in _KNOWN_LAST or layers[-1].is_decoder:
        return False
    layer: Any = layers[-1]
    inner = layer.forward

    def forward(hidden_1NH: Tensor, *args: Any, **kwargs: Any) -> Any:
        return _first_tokens(layer, hidden_1NH) if now.texts else inner(hidden_1NH, *args, **kwargs)

    layer.forward = forward
    return True


def _first_tokens(layer: Any, hidden_1NH: Tensor) -> Tensor:
    assert now.texts is not None
    own = layer.attention.self
    heads, d = own.num_attention_heads, own.attention_head_size
    if now.texts.texts_RT is not None:  # attention in rows is computed for all places; what follows it, for first ones
        seen_RTH = own(hidden_1NH)[0]
        seen_BH, first_BH = (x.flatten(0, 1).index_select(0, now.texts.first_B) for x in (seen_RTH, hidden_1NH))
        attended_1BH = layer.attention.output(seen_BH[None], first_BH[None])
        return layer.feed_forward_chunk(attended_1BH)  # type: ignore[no-any-return]  # transformers says Any
    first_1BH = hidden_1NH.index_select(1, now.texts.first_B)
    queries, keys_values = own.query(first_1BH), (own.key(hidden_1NH), own.value(hidden_1NH))
    if has_flash(queries):
        q_BhD, k_NhD, v_NhD = (x.view(-1, heads, d) for x in (queries, *keys_values))
        dropout = own.dropout.p if own.training else 0.0
        seen_BhD = flash(q_BhD, k_NhD, v_NhD, dropout, AttentionSpan(), own.scaling, first_only=True)
        attended_1BH = layer.attention.output(seen_BhD.reshape(1, -1, heads * d), first_1BH)
        return layer.feed_forward_chunk(attended_1BH)  # type: ignore[no-any-return]  # transformers says Any
    layout = now.layout(heads, first_only=True)
    dropout = own.dropout.p if own.training and now.rng else 0.0
    keep = dropped_weights(own, layout, dropout, queries.device)
    rows = [x.view(-1, d) for x in (queries, *keys_values)]
    seen_Rd = Attend.apply(*rows, layout, own.scaling, AttentionSpan(), keep, 1 / (1 - dropout))
    with now.rows_are_texts():
        attended_1BH = layer.attention.output(seen_Rd.view(1, -1, heads * d), first_1BH)
        narrow_1BH: Tensor = layer.feed_forward_chunk(attended_1BH)
    return narrow_1BH
