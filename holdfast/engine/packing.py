"""Work on real tokens only: texts lie one after the other in one row, and attention stays inside each of them.

Every dense layer then sees (1, tokens, hidden) without a single padded position. Any Hugging Face model whose
attention goes through the library's attention interface can be packed.

N tokens, B texts, T tokens of one text, h heads, d of each head, H hidden.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.modeling_outputs import BaseModelOutputWithPooling

from holdfast.data.shards import TokenArray
from holdfast.engine.draws import Draws
from holdfast.engine.order import Indices

ATTENTION = "holdfast_packed"


@dataclass(frozen=True, slots=True)
class Pack:
    """Some texts in one row."""

    ids_1N: Tensor
    positions_1N: Tensor
    lengths: list[int]
    first_B: Tensor  # index of each text's first token


def pack(tokens: TokenArray, examples: Indices, device: str, position_offset: int = 0) -> Pack:
    """Lay texts one after the other, each with positions of its own."""
    texts = [tokens[int(at)] for at in examples]
    lengths = [len(text) for text in texts]
    starts = np.concatenate([[0], np.cumsum(lengths)[:-1]]).astype(np.int64)
    positions = np.concatenate([np.arange(length) for length in lengths]) + position_offset
    return Pack(
        torch.from_numpy(np.concatenate(texts).astype(np.int64))[None].to(device, non_blocking=True),
        torch.from_numpy(positions)[None].to(device, non_blocking=True),
        lengths,
        torch.from_numpy(starts).to(device, non_blocking=True),
    )


# What the attention below works on. One training process has one forward pass at a time.
_now: dict[str, Any] = {"lengths": [], "first": None, "draws": None}


@contextmanager
def packed(texts: Pack, draws: Draws | None = None) -> Iterator[None]:
    """Let the model's attention know where each text ends."""
    _now.update(lengths=texts.lengths, first=texts.first_B, draws=draws)
    try:
        yield
    finally:
        _now.update(lengths=[], first=None, draws=None)


def pack_base(model: nn.Module) -> None:
    """Let a model with a head take packed texts: its base gives the head one first token a text, as (B, 1, H)."""
    base: Any = model.base_model
    inner = base.forward

    def forward(*args: Any, **kwargs: Any) -> Any:
        found = inner(*args, **kwargs)
        if not _now["lengths"]:
            return found
        first_B1H = found.last_hidden_state[0, _now["first"]][:, None]
        pooler = getattr(base, "pooler", None)
        pooled_BH = pooler(first_B1H) if pooler else None
        return BaseModelOutputWithPooling(last_hidden_state=first_B1H, pooler_output=pooled_BH)

    base.forward = forward


def _attend(
    module: nn.Module, q_1hNd: Tensor, k_1hNd: Tensor, v_1hNd: Tensor, attention_mask: None, **kwargs: Any
) -> tuple[Tensor, None]:
    """Attention of each text to itself."""
    lengths, draws = _now["lengths"], _now["draws"]
    dropout, scale = kwargs.get("dropout", 0.0), kwargs.get("scaling") or q_1hNd.shape[-1] ** -0.5
    is_causal = bool(getattr(module, "is_causal", False))
    gqa = q_1hNd.shape[1] != k_1hNd.shape[1]
    if dropout and draws:
        if gqa:
            groups = q_1hNd.shape[1] // k_1hNd.shape[1]
            k_1hNd, v_1hNd = k_1hNd.repeat_interleave(groups, 1), v_1hNd.repeat_interleave(groups, 1)
        site = _SITES.setdefault(module, len(_SITES))
        keep = [
            draws.keep(site, q_1hNd.shape[1] * length, 0, length, dropout, draws.first_example + at + 1)
            for at, length in enumerate(lengths)
        ]
        grow = 1 / (1 - dropout)
        seen_hNd = _DroppingAttention.apply(q_1hNd[0], k_1hNd[0], v_1hNd[0], lengths, scale, is_causal, keep, grow)
        return seen_hNd.transpose(0, 1)[None], None
    # split and cat, not slices: the backward of a slice fills a tensor of the whole length, for every text.
    parts = zip(q_1hNd.split(lengths, 2), k_1hNd.split(lengths, 2), v_1hNd.split(lengths, 2), strict=True)
    seen = [
        scaled_dot_product_attention(q, k, v, scale=scale, is_causal=is_causal, enable_gqa=gqa) for q, k, v in parts
    ]
    return torch.cat(seen, 2).transpose(1, 2), None


_SITES: dict[nn.Module, int] = {}


class _DroppingAttention(torch.autograd.Function):
    """Attention with dropout on its weights, text by text, its gradient written out.

    torch's fused kernel does not drop on a CPU, and the general one draws slowly.
    """

    @staticmethod
    def forward(ctx, q_hNd, k_hNd, v_hNd, lengths, scale, is_causal, keep, grow):  # type: ignore[no-untyped-def]
        out_hNd = torch.empty_like(q_hNd)
        weights = []
        start = 0
        for length, kept in zip(lengths, keep, strict=True):
            here = slice(start, start + length)
            scores_hTT = (q_hNd[:, here] @ k_hNd[:, here].transpose(1, 2)).mul_(scale)
            if is_causal:
                future_TT = torch.ones(length, length, dtype=torch.bool, device=q_hNd.device).triu(1)
                scores_hTT.masked_fill_(future_TT, -torch.inf)
            weights_hTT = torch.softmax(scores_hTT, -1)
            dropped_hTT = torch.where(kept.view(weights_hTT.shape), weights_hTT, 0.0).mul_(grow)
            out_hNd[:, here] = dropped_hTT @ v_hNd[:, here]
            weights.append(weights_hTT)
            start += length
        ctx.save_for_backward(q_hNd, k_hNd, v_hNd, *weights)
        ctx.lengths, ctx.scale, ctx.keep, ctx.grow = lengths, scale, keep, grow
        return out_hNd

    @staticmethod
    def backward(ctx, d_out_hNd):  # type: ignore[no-untyped-def]
        q_hNd, k_hNd, v_hNd, *weights = ctx.saved_tensors
        d_q, d_k, d_v = torch.empty_like(q_hNd), torch.empty_like(k_hNd), torch.empty_like(v_hNd)
        start = 0
        for length, weights_hTT, kept in zip(ctx.lengths, weights, ctx.keep, strict=True):
            here = slice(start, start + length)
            kept_hTT = kept.view(weights_hTT.shape)
            dropped_hTT = torch.where(kept_hTT, weights_hTT, 0.0).mul_(ctx.grow)
            d_v[:, here] = dropped_hTT.transpose(1, 2) @ d_out_hNd[:, here]
            d_dropped = d_out_hNd[:, here] @ v_hNd[:, here].transpose(1, 2)
            d_weights = torch.where(kept_hTT, d_dropped, 0.0).mul_(ctx.grow)
            d_scores = (d_weights - (d_weights * weights_hTT).sum(-1, keepdim=True)).mul_(weights_hTT).mul_(ctx.scale)
            d_q[:, here] = d_scores @ k_hNd[:, here]
            d_k[:, here] = d_scores.transpose(1, 2) @ q_hNd[:, here]
            start += length
        return d_q, d_k, d_v, None, None, None, None, None


def _no_mask(*args: Any, **kwargs: Any) -> None:
    """Packed attention needs no mask."""


AttentionInterface.register(ATTENTION, _attend)
AttentionMaskInterface.register(ATTENTION, _no_mask)
