"""Let the last layer work on first tokens only, where the head reads nothing else.

The other tokens still answer (keys and values), but what they would become is never looked at, so neither it nor its
gradient is computed: a seventh of the arithmetic of six layers. Known for the layers of BERT and its kin.

N tokens, B texts, R rows (heads of tokens), d values a row, H hidden.
"""

from typing import Any

from torch import Tensor

from holdfast.engine.attention import Attend, Sight
from holdfast.engine.packing import dropped_weights, flash, has_flash, now

_KNOWN = {"BertLayer", "RobertaLayer", "XLMRobertaLayer", "ElectraLayer", "CamembertLayer", "BertGenerationLayer"}


def narrow_last_layer(base: Any) -> bool:
    """Change how this encoder's last layer takes packed texts; say whether it is one that we know."""
    layers = getattr(getattr(base, "encoder", None), "layer", None)
    if not layers or type(layers[-1]).__name__ not in _KNOWN or layers[-1].is_decoder:
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
    first_1BH = hidden_1NH.index_select(1, now.texts.first_B)
    asked, told = own.query(first_1BH), (own.key(hidden_1NH), own.value(hidden_1NH))
    if has_flash(asked):
        q_BhD, k_NhD, v_NhD = (x.view(-1, heads, d) for x in (asked, *told))
        dropout = own.dropout.p if own.training else 0.0
        seen_BhD = flash(q_BhD, k_NhD, v_NhD, dropout, Sight(), own.scaling, first_only=True)
        attended_1BH = layer.attention.output(seen_BhD.reshape(1, -1, heads * d), first_1BH)
        return layer.feed_forward_chunk(attended_1BH)  # type: ignore[no-any-return]  # transformers says Any
    layout = now.layout(heads, first_only=True)
    dropout = own.dropout.p if own.training and now.draws else 0.0
    keep = dropped_weights(own, layout, dropout, asked.device)
    rows = [x.view(-1, d) for x in (asked, *told)]
    seen_Rd = Attend.apply(*rows, layout, own.scaling, Sight(), keep, 1 / (1 - dropout))
    with now.rows_are_texts():
        attended_1BH = layer.attention.output(seen_Rd.view(1, -1, heads * d), first_1BH)
        narrow_1BH: Tensor = layer.feed_forward_chunk(attended_1BH)
    return narrow_1BH
