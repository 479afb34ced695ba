"""Attention within each packed text, with dropout and a hand-written gradient.

Texts of similar length are gathered into one padded block, so that a layer makes a few large calls instead of dozens
of small ones. On a CPU torch's fused kernel has no dropout, and its general one draws random numbers slowly.

R rows (heads of tokens), P rows with padding, d values per row. In a block: S = texts x heads, T tokens of each when
padded, Q queries of each.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.autograd import Function

_UNIT = 8  # lengths are padded to a multiple of this; 16 and 32 measured slower

_FAR_BELOW = -1e30  # not -inf: padding that sees only padding would become NaN, and 0 * NaN is NaN

Rows = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class AttentionSpan:
    """Which tokens of its text a token sees: all, only earlier ones, or only those within `reach`."""

    is_causal: bool = False
    reach: int | None = None

    def is_limited(self, tokens: int) -> bool:
        """Whether some tokens of a text of this length do not see each other."""
        return self.is_causal or (self.reach is not None and self.reach < tokens - 1)

    def seen(self, tokens: int, device: torch.device) -> Tensor:
        """(T, T): whether the row's token sees the column's token."""
        at_T = torch.arange(tokens, device=device)
        ahead_TT = at_T - at_T[:, None]
        seen_TT = ahead_TT <= 0 if self.is_causal else torch.ones_like(ahead_TT, dtype=torch.bool)
        return seen_TT if self.reach is None else seen_TT & (ahead_TT.abs() <= self.reach)


@dataclass(frozen=True, slots=True)
class Block:
    """Texts that are padded to the same length."""

    texts: list[int]
    tokens: int  # T
    queries: int  # Q
    bias_S1T: Tensor | None  # 0 for a token, very negative for padding; None without padding


class PackedLayout:
    """Where the rows of packed texts are in padded blocks. All layers of a forward pass share it.

    With `first_only`, only the first token of each text is a query.
    """

    def __init__(self, lengths: list[int], heads: int, device: torch.device, *, first_only: bool = False):
        self.heads = heads
        starts, sizes = np.concatenate([[0], np.cumsum(lengths)]), np.array(lengths)
        padded = -(-sizes // _UNIT) * _UNIT
        self.blocks: list[Block] = []
        keys, queries = [], []
        for tokens in np.unique(padded).tolist():
            texts = np.flatnonzero(padded == tokens)
            inside = np.minimum(np.arange(tokens), sizes[texts, None] - 1)  # padding repeats the last token
            keys.append(_by_head(starts[texts, None] + inside, heads))
            queries.append(_by_head(texts[:, None], heads) if first_only else keys[-1])
            bias = _bias(sizes[texts], tokens, heads, device)
            self.blocks.append(Block(texts.tolist(), tokens, 1 if first_only else tokens, bias))
        self.keys = _RowMoves(np.concatenate(keys), int(starts[-1]) * heads, device)
        self.queries = _RowMoves(np.concatenate(queries), len(lengths) * heads, device) if first_only else self.keys


class _RowMoves:
    """Moves rows into the blocks and back."""

    def __init__(self, rows_P: Rows, count: int, device: torch.device):
        positions_R = np.empty(count, dtype=np.int64)
        positions_R[rows_P[::-1]] = np.arange(len(rows_P))[::-1]  # the first is the row itself, later ones pad
        real_P1 = np.zeros((len(rows_P), 1), dtype=np.float32)
        real_P1[positions_R] = 1
        self._rows_P, self._positions_R = torch.from_numpy(rows_P).to(device), torch.from_numpy(positions_R).to(device)
        self._real_P1 = torch.from_numpy(real_P1).to(device) if count < len(rows_P) else None

    def into(self, x_Rd: Tensor) -> Tensor:
        return x_Rd.index_select(0, self._rows_P)

    def into_or_zero(self, x_Rd: Tensor) -> Tensor:
        x_Pd = self.into(x_Rd)
        return x_Pd if self._real_P1 is None else x_Pd.mul_(self._real_P1)

    def back(self, x_Pd: Tensor) -> Tensor:
        return x_Pd.index_select(0, self._positions_R)


class Attend(Function):
    """Attention within each text, over (R, d) rows. `keep` is the dropout mask: one (S, Q, T) per block, or None."""

    @staticmethod
    def forward(ctx, q_Rd, k_Rd, v_Rd, layout, scale, span, keep, grow):  # type: ignore[no-untyped-def]  # called by autograd
        q_Pd, k_Pd, v_Pd = layout.queries.into(q_Rd), layout.keys.into(k_Rd), layout.keys.into(v_Rd)
        seen_Pd = torch.empty_like(q_Pd)
        saved = []
        for at, (block, (q_SQd, seen_SQd), (k_STd, v_STd)) in enumerate(_blocks(layout, (q_Pd, seen_Pd), (k_Pd, v_Pd))):
            weights_SQT = torch.softmax(_scores(block, q_SQd, k_STd, scale, span), -1)
            dropped_SQT = weights_SQT if keep is None else keep[at].to(q_Pd.dtype).mul_(weights_SQT)
            torch.baddbmm(seen_SQd, dropped_SQT, v_STd, beta=0, alpha=grow, out=seen_SQd)
            saved.append(weights_SQT)
        ctx.save_for_backward(q_Pd, k_Pd, v_Pd, *saved)
        ctx.given = layout, scale, keep, grow
        return layout.queries.back(seen_Pd)

    @staticmethod
    def backward(ctx, d_seen_Rd):  # type: ignore[no-untyped-def]  # torch gives a context without a type
        q_Pd, k_Pd, v_Pd, *saved = ctx.saved_tensors
        layout, scale, keep, grow = ctx.given
        d_seen_Pd = layout.queries.into_or_zero(d_seen_Rd)
        d_q_Pd, d_k_Pd, d_v_Pd = torch.empty_like(q_Pd), torch.empty_like(k_Pd), torch.empty_like(v_Pd)
        queries, keys = (q_Pd, d_q_Pd, d_seen_Pd), (k_Pd, d_k_Pd, v_Pd, d_v_Pd)
        for at, (_, (q, d_q, d_seen), (k, d_k, v, d_v)) in enumerate(_blocks(layout, queries, keys)):
            weights_SQT = dropped_SQT = saved[at]
            d_weights_SQT = torch.baddbmm(weights_SQT, d_seen, v.transpose(1, 2), beta=0, alpha=grow)
            if keep is not None:
                kept_SQT = keep[at].to(q.dtype)
                d_weights_SQT.mul_(kept_SQT)
                dropped_SQT = kept_SQT.mul_(weights_SQT)
            torch.baddbmm(d_v, dropped_SQT.transpose(1, 2), d_seen, beta=0, alpha=grow, out=d_v)
            d_scores_SQT = torch._softmax_backward_data(d_weights_SQT, weights_SQT, -1, weights_SQT.dtype)
            torch.baddbmm(d_q, d_scores_SQT, k, beta=0, alpha=scale, out=d_q)
            torch.baddbmm(d_k, d_scores_SQT.transpose(1, 2), q, beta=0, alpha=scale, out=d_k)
        back = layout.queries.back(d_q_Pd), layout.keys.back(d_k_Pd), layout.keys.back(d_v_Pd)
        return *back, None, None, None, None, None


def _blocks(
    layout: PackedLayout, queries: tuple[Tensor, ...], keys: tuple[Tensor, ...]
) -> Iterator[tuple[Block, list[Tensor], list[Tensor]]]:
    """Each block's part of the tensors, as (S, Q, d) for queries and (S, T, d) for keys and values."""
    q_at, k_at = 0, 0
    for block in layout.blocks:
        size = len(block.texts) * layout.heads
        q_end, k_end = q_at + size * block.queries, k_at + size * block.tokens
        yield (
            block,
            [x_Pd[q_at:q_end].view(size, block.queries, -1) for x_Pd in queries],
            [x_Pd[k_at:k_end].view(size, block.tokens, -1) for x_Pd in keys],
        )
        q_at, k_at = q_end, k_end


def _scores(block: Block, q_SQd: Tensor, k_STd: Tensor, scale: float, span: AttentionSpan) -> Tensor:
    k_SdT = k_STd.transpose(1, 2)
    if block.bias_S1T is None:
        scores_SQT = torch.baddbmm(q_SQd.new_empty(1, 1, 1), q_SQd, k_SdT, beta=0, alpha=scale)
    else:
        scores_SQT = torch.baddbmm(block.bias_S1T.to(q_SQd.dtype), q_SQd, k_SdT, alpha=scale)
    if span.is_limited(block.tokens):
        scores_SQT.masked_fill_(~span.seen(block.tokens, q_SQd.device), -torch.inf)
    return scores_SQT


def _by_head(tokens_GT: Rows, heads: int) -> Rows:
    """Rows of the given tokens, head after head in each text."""
    rows_GhT: Rows = tokens_GT[:, None, :] * heads + np.arange(heads)[:, None]
    return rows_GhT.ravel()


def _bias(sizes: Rows, tokens: int, heads: int, device: torch.device) -> Tensor | None:
    if (sizes == tokens).all():
        return None
    bias_GT = np.where(np.arange(tokens) < sizes[:, None], 0, _FAR_BELOW).astype(np.float32)
    return torch.from_numpy(bias_GT.repeat(heads, 0)[:, None]).to(device)
