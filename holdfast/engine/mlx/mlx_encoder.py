"""The encoders of BERT's family over packed rows: BERT, RoBERTa, XLM-RoBERTa, CamemBERT, ELECTRA, DistilBERT, MPNet.

Weights are a dictionary under the names that transformers saves, so a model folder is read and written as it is.

R rows, T tokens of a row, B texts, H hidden, h heads, d of each head.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import mlx.nn as nn

from holdfast.core.errors import RequestError, set_to
from holdfast.engine.mlx.mlx_adamw import Weights
from holdfast.engine.mlx.mlx_dropout import StepMasks
from holdfast.engine.mlx.text_rows import TextRows

Config = Mapping[str, Any]

_UNSEEN = -1e30  # not -inf: padding sees only padding, and 0 * inf is NaN
_SITES = 8  # of dropout, per layer
_ACTIVATIONS: Mapping[str, Callable[[mx.array], mx.array]] = {
    "gelu": nn.gelu,
    "gelu_new": nn.gelu_approx,
    "gelu_pytorch_tanh": nn.gelu_approx,
    "relu": nn.relu,
    "silu": nn.silu,
}


@dataclass(frozen=True, slots=True)
class LayerNames:
    """The names of a layer's parts."""

    query: str = "attention.self.query"
    key: str = "attention.self.key"
    value: str = "attention.self.value"
    attended: str = "attention.output.dense"
    attended_norm: str = "attention.output.LayerNorm"
    widen: str = "intermediate.dense"
    narrow: str = "output.dense"
    norm: str = "output.LayerNorm"


@dataclass(frozen=True, slots=True)
class EncoderKind:
    """How the folders of one kind of encoder name their weights and settings."""

    prefix: str  # before the names of the encoder, in a model with a head
    layers: str = "encoder.layer"
    names: LayerNames = LayerNames()
    settings: Mapping[str, str] | None = None  # its names for BERT's settings
    starts_after_padding: bool = False  # positions start after the padding token's id
    head: str = "classifier.out_proj"  # the last layer of a classifier
    pooled: str = "classifier.dense"  # the layer before it
    pooled_activation: str = "tanh"
    drops_first: bool = True  # dropout before that layer, not only after it
    drops_attended: bool = True


_DISTIL = LayerNames(
    *("attention.q_lin", "attention.k_lin", "attention.v_lin", "attention.out_lin", "sa_layer_norm"),
    *("ffn.lin1", "ffn.lin2", "output_layer_norm"),
)
_DISTIL_SETTINGS = {
    "hidden_size": "dim",
    "num_hidden_layers": "n_layers",
    "num_attention_heads": "n_heads",
    "hidden_act": "activation",
    "hidden_dropout_prob": "dropout",
    "attention_probs_dropout_prob": "attention_dropout",
    "classifier_dropout": "seq_classif_dropout",
}
_MPNET = LayerNames(
    *("attention.attn.q", "attention.attn.k", "attention.attn.v", "attention.attn.o", "attention.LayerNorm"),
)
_ROBERTA = EncoderKind("roberta", starts_after_padding=True)
KINDS: Mapping[str, EncoderKind] = {
    "bert": EncoderKind("bert", head="classifier", pooled="bert.pooler.dense", drops_first=False),
    "roberta": _ROBERTA,
    "xlm-roberta": _ROBERTA,
    "camembert": _ROBERTA,
    "electra": EncoderKind("electra", pooled_activation="gelu"),
    "mpnet": EncoderKind("mpnet", names=_MPNET, starts_after_padding=True),
    "distilbert": EncoderKind(
        "distilbert",
        layers="transformer.layer",
        names=_DISTIL,
        settings=_DISTIL_SETTINGS,
        head="classifier",
        pooled="pre_classifier",
        pooled_activation="relu",
        drops_first=False,
        drops_attended=False,
    ),
}


class Encoder:
    """The forward pass of an encoder. Its weights are arguments, so that their gradient can be taken."""

    def __init__(self, config: Config, *, is_half: bool = False, checkpointing: bool = False):
        kind = KINDS.get(str(config.get("model_type")))
        if kind is None:
            raise RequestError(
                "the MLX backend cannot train this encoder",
                found=f"its architecture is {config.get('model_type')}; known: {', '.join(KINDS)}",
                try_next=(set_to("backend", "torch"),),
                setting="model",
            )
        if kind.prefix != "distilbert" and config.get("position_embedding_type", "absolute") != "absolute":
            raise RequestError(
                "the MLX backend cannot train an encoder with relative position embeddings",
                found=f"position_embedding_type is {config['position_embedding_type']}",
                try_next=(set_to("backend", "torch"),),
                setting="model",
            )
        self.kind, self.config = kind, config
        self.dtype = mx.bfloat16 if is_half else mx.float32
        self._checkpointing = checkpointing
        self._activation = _ACTIVATIONS[str(self.setting("hidden_act", "gelu"))]
        self._heads = int(self.setting("num_attention_heads", 12))
        self._eps = float(config.get("layer_norm_eps", 1e-12))
        self._drop = float(self.setting("hidden_dropout_prob", 0.1))
        self._drop_attention = float(self.setting("attention_probs_dropout_prob", 0.1))
        self._layers = int(self.setting("num_hidden_layers", 12))
        self._offset = int(config.get("pad_token_id") or 0) + 1 if kind.starts_after_padding else 0

    def setting(self, name: str, default: object = None) -> Any:
        """A setting by its name in BERT's configuration."""
        found = self.config.get((self.kind.settings or {}).get(name, name))
        return default if found is None else found

    @property
    def embedding(self) -> str:
        """The name of the table of word embeddings."""
        return f"{self.kind.prefix}.embeddings.word_embeddings.weight"

    def states(self, weights: Weights, rows: TextRows, masks: StepMasks | None, padding: int | None) -> mx.array:
        """The state of each token, (R, T, H). The row `padding` of the table is not trained, as in transformers."""
        w = {name: weight.astype(self.dtype) for name, weight in weights.items()}
        x_RTH = self._embedded(w, rows, masks, padding)
        bias = self._position_bias(w, rows)
        for layer in range(self._layers):
            compute = self._layer(layer, rows, masks)
            own = f"{self.kind.prefix}.{self.kind.layers}.{layer}."
            parts = {name.removeprefix(own): weight for name, weight in w.items() if name.startswith(own)}
            x_RTH = (mx.checkpoint(compute) if self._checkpointing else compute)(parts, x_RTH, bias)
        return x_RTH

    def scores(self, weights: Weights, rows: TextRows, masks: StepMasks | None, padding: int | None) -> mx.array:
        """The classifier's scores for each text, (B, labels)."""
        states_RTH = self.states(weights, rows, masks, padding)
        first_BH = states_RTH.reshape(-1, states_RTH.shape[-1])[rows.first_B]
        p, site, kind = float(self.setting("classifier_dropout", self._drop)), 1 + self._layers * _SITES, self.kind
        if masks and p and kind.drops_first:
            first_BH = masks.texts(first_BH, p, site)
        activation = mx.tanh if kind.pooled_activation == "tanh" else _ACTIVATIONS[kind.pooled_activation]
        pooled_BH = activation(_linear(weights, kind.pooled, first_BH.astype(mx.float32)))
        if masks and p:
            pooled_BH = masks.texts(pooled_BH, p, site + 1)
        return _linear(weights, kind.head, pooled_BH)

    def _embedded(self, w: Weights, rows: TextRows, masks: StepMasks | None, padding: int | None) -> mx.array:
        own = f"{self.kind.prefix}.embeddings."
        x_RTE = w[self.embedding][rows.ids_RT]
        if padding is not None:
            x_RTE = mx.where((rows.ids_RT == padding)[..., None], mx.stop_gradient(x_RTE), x_RTE)
        x_RTE = x_RTE + w[own + "position_embeddings.weight"][rows.positions_RT + self._offset]
        types = w.get(own + "token_type_embeddings.weight")
        if types is not None:
            x_RTE = x_RTE + types[0]
        x_RTE = self._norm(w, own + "LayerNorm", x_RTE)
        if masks and self._drop:
            x_RTE = masks.tokens(x_RTE, self._drop, 0)
        projection = f"{self.kind.prefix}.embeddings_project"
        return _linear(w, projection, x_RTE) if f"{projection}.weight" in w else x_RTE

    def _layer(
        self, number: int, rows: TextRows, masks: StepMasks | None
    ) -> Callable[[Weights, mx.array, mx.array | None], mx.array]:
        names, site = self.kind.names, 1 + number * _SITES

        def compute(w: Weights, x_RTH: mx.array, bias: mx.array | None) -> mx.array:
            seen_RTH = _linear(w, names.attended, self._attended(w, x_RTH, bias, rows, masks, site))
            if masks and self._drop and self.kind.drops_attended:
                seen_RTH = masks.tokens(seen_RTH, self._drop, site + 1)
            x_RTH = self._norm(w, names.attended_norm, x_RTH + seen_RTH)
            fed_RTH = _linear(w, names.narrow, self._activation(_linear(w, names.widen, x_RTH)))
            if masks and self._drop:
                fed_RTH = masks.tokens(fed_RTH, self._drop, site + 2)
            return self._norm(w, names.norm, x_RTH + fed_RTH)

        return compute

    def _attended(
        self, w: Weights, x_RTH: mx.array, bias: mx.array | None, rows: TextRows, masks: StepMasks | None, site: int
    ) -> mx.array:
        names, size = self.kind.names, x_RTH.shape
        q, k, v = (
            _linear(w, name, x_RTH).reshape(*size[:2], self._heads, -1).transpose(0, 2, 1, 3)
            for name in (names.query, names.key, names.value)
        )
        scale, seen_R1TT = 1 / math.sqrt(q.shape[-1]), rows.seen()
        if bias is None and not (masks and self._drop_attention):
            found_RhTd = mx.fast.scaled_dot_product_attention(q, k, v, scale=scale, mask=seen_R1TT)
        else:
            scores_RhTT = (q * scale) @ k.transpose(0, 1, 3, 2)
            if bias is not None:
                scores_RhTT = scores_RhTT + bias
            weights_RhTT = mx.softmax(mx.where(seen_R1TT, scores_RhTT.astype(mx.float32), _UNSEEN), axis=-1)
            if masks and self._drop_attention:
                weights_RhTT = masks.attention(weights_RhTT, self._drop_attention, site)
            found_RhTd = weights_RhTT.astype(v.dtype) @ v
        return found_RhTd.transpose(0, 2, 1, 3).reshape(size)

    def _norm(self, w: Weights, name: str, x: mx.array) -> mx.array:
        return mx.fast.layer_norm(x, w[f"{name}.weight"], w[f"{name}.bias"], self._eps)

    def _position_bias(self, w: Weights, rows: TextRows) -> mx.array | None:
        """MPNet's bias by relative position, (1, h, T, T). Within a text, places in a row differ as positions do."""
        table = w.get(f"{self.kind.prefix}.encoder.relative_attention_bias.weight")
        if table is None:
            return None
        at_T = mx.arange(rows.ids_RT.shape[1])
        buckets = int(self.setting("relative_attention_num_buckets", 32))
        return table[_relative_buckets(at_T[None] - at_T[:, None], buckets)].transpose(2, 0, 1)[None]


def _linear(w: Mapping[str, mx.array], name: str, x: mx.array) -> mx.array:
    return mx.addmm(w[f"{name}.bias"], x, w[f"{name}.weight"].T)


def _relative_buckets(distance: mx.array, count: int, furthest: int = 128) -> mx.array:
    """T5's buckets for both directions: exact for near tokens, logarithmic up to the furthest."""
    half = count // 2
    exact = half // 2
    away = mx.abs(distance)
    log_share = mx.log(mx.maximum(away, 1).astype(mx.float32) / exact) / math.log(furthest / exact)
    far = mx.minimum(exact + (log_share * (half - exact)).astype(mx.int32), half - 1)
    return mx.where(distance > 0, half, 0) + mx.where(away < exact, away, far)
