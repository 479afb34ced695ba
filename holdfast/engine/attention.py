"""Attention of packed texts to themselves, with dropout, its gradient written out.

Texts of about the same length are gathered into one padded block, so that a layer makes a handful of large calls in
place of dozens of small ones. torch's fused kernel drops nothing on a CPU, and the general one draws slowly.

R rows (heads of tokens), P rows with padding, d values a row. In a block: S = texts x heads, T tokens of each when
padded, Q of them that ask.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.autograd import Function

_UNIT = 8  # lengths are padded to a multiple of this; 16 and 32 measured slower

_FAR_BELOW = -1e30  # not -inf: padding that sees nothing but padding must not become NaN, which 0 times stays NaN

Rows = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Sight:
    """Which tokens of its text a token sees: all, none that come after it, none that are further away than `reach`."""

    is_causal: bool = False
    reach: int | None = None

    def is_limited(self, tokens: int) -> bool:
        """Whether a text of so many tokens has some that do not see each other."""
        return self.is_causal or (self.reach is not None and self.reach < tokens - 1)

    def seen(self, tokens: int, device: torch.device) -> Tensor:
        """(T, T): whether the token of a row sees the token of a column."""
        at_T = torch.arange(tokens, device=device)
        ahead_TT = at_T - at_T[:, None]
        seen_TT = ahead_TT <= 0 if self.is_causal else torch.ones_like(ahead_TT, dtype=torch.bool)
        return seen_TT if self.reach is None else seen_TT & (ahead_TT.abs() <= self.reach)


@dataclass(frozen=True, slots=True)
class Block:
    """Texts that are padded to the same length."""

    texts: list[int]
    tokens: int  # T
    asking: int  # Q
    bias_S1T: Tensor | None  # 0 for a token, far below for padding; None without padding


class Layout:
    """Where the rows of packed texts lie in padded blocks. All layers of a forward pass share it.

    With `first_only` the first token of each text asks, and no other.
    """

    def __init__(self, lengths: list[int], heads: int, device: torch.device, *, first_only: bool = False):
        self.heads = heads
        starts, sizes = np.concatenate([[0], np.cumsum(lengths)]), np.array(lengths)
        padded = -(-sizes // _UNIT) * _UNIT
        self.blocks: list[Block] = []
        told, asked = [], []
        for tokens in np.unique(padded).tolist():
            texts = np.flatnonzero(padded == tokens)
            inside = np.minimum(np.arange(tokens), sizes[texts, None] - 1)  # padding repeats the last token
            told.append(_by_head(starts[texts, None] + inside, heads))
            asked.append(_by_head(texts[:, None], heads) if first_only else told[-1])
            bias = _bias(sizes[texts], tokens, heads, device)
            self.blocks.append(Block(texts.tolist(), tokens, 1 if first_only else tokens, bias))
        self.told = _Moves(np.concatenate(told), int(starts[-1]) * heads, device)
        self.asked = _Moves(np.concatenate(asked), len(lengths) * heads, device) if first_only else self.told


class _Moves:
    """Takes rows into the blocks and back."""

    def __init__(self, rows_P: Rows, count: int, device: torch.device):
        places_R = np.empty(count, dtype=np.int64)
        places_R[rows_P[::-1]] = np.arange(len(rows_P))[::-1]  # the first place of a row is its own, others pad
        real_P1 = np.zeros((len(rows_P), 1), dtype=np.float32)
        real_P1[places_R] = 1
        self._rows_P, self._places_R = torch.from_numpy(rows_P).to(device), torch.from_numpy(places_R).to(device)
        self._real_P1 = torch.from_numpy(real_P1).to(device) if count < len(rows_P) else None

    def into(self, x_Rd: Tensor) -> Tensor:
        return x_Rd.index_select(0, self._rows_P)

    def into_or_zero(self, x_Rd: Tensor) -> Tensor:
        x_Pd = self.into(x_Rd)
        return x_Pd if self._real_P1 is None else x_Pd.mul_(self._real_P1)

    def back(self, x_Pd: Tensor) -> Tensor:
        return x_Pd.index_select(0, self._places_R)


class Attend(Function):
    """Attention inside each text, over (R, d) rows. `keep` has one (S, Q, T) of 0 and 1 for each block, or is None."""

    @staticmethod
    def forward(ctx, q_Rd, k_Rd, v_Rd, layout, scale, sight, keep, grow):  # type: ignore[no-untyped-def]  # called by autograd
        q_Pd, k_Pd, v_Pd = layout.asked.into(q_Rd), layout.told.into(k_Rd), layout.told.into(v_Rd)
        seen_Pd = torch.empty_like(q_Pd)
        saved = []
        for at, (block, (q_SQd, seen_SQd), (k_STd, v_STd)) in enumerate(_blocks(layout, (q_Pd, seen_Pd), (k_Pd, v_Pd))):
            weights_SQT = torch.softmax(_scores(block, q_SQd, k_STd, scale, sight), -1)
            dropped_SQT = weights_SQT if keep is None else keep[at].to(q_Pd.dtype).mul_(weights_SQT)
            torch.baddbmm(seen_SQd, dropped_SQT, v_STd, beta=0, alpha=grow, out=seen_SQd)
            saved.append(weights_SQT)
        ctx.save_for_backward(q_Pd, k_Pd, v_Pd, *saved)
        ctx.given = layout, scale, keep, grow
        return layout.asked.back(seen_Pd)

    @staticmethod
    def backward(ctx, d_seen_Rd):  # type: ignore[no-untyped-def]  # torch gives a context without a type
        q_Pd, k_Pd, v_Pd, *saved = ctx.saved_tensors
        layout, scale, keep, grow = ctx.given
        d_seen_Pd = layout.asked.into_or_zero(d_seen_Rd)
        d_q_Pd, d_k_Pd, d_v_Pd = torch.empty_like(q_Pd), torch.empty_like(k_Pd), torch.empty_like(v_Pd)
        asked, told = (q_Pd, d_q_Pd, d_seen_Pd), (k_Pd, d_k_Pd, v_Pd, d_v_Pd)
        for at, (_, (q, d_q, d_seen), (k, d_k, v, d_v)) in enumerate(_blocks(layout, asked, told)):
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
        back = layout.asked.back(d_q_Pd), layout.told.back(d_k_Pd), layout.told.back(d_v_Pd)
        return *back, None, None, None, None, None


def _blocks(
    layout: Layout, asked: tuple[Tensor, ...], told: tuple[Tensor, ...]
) -> Iterator[tuple[Block, list[Tensor], list[Tensor]]]:
    """Each block's part of the tensors, as (S, Q, d) of those that ask and (S, T, d) of those that are asked."""
    q_at, k_at = 0, 0
    for block in layout.blocks:
        size = len(block.texts) * layout.heads
        q_end, k_end = q_at + size * block.asking, k_at + size * block.tokens
        yield (
            block,
            [x_Pd[q_at:q_end].view(size, block.asking, -1) for x_Pd in asked],
            [x_Pd[k_at:k_end].view(size, block.tokens, -1) for x_Pd in told],
        )
        q_at, k_at = q_end, k_end


def _scores(block: Block, q_SQd: Tensor, k_STd: Tensor, scale: float, sight: Sight) -> Tensor:
    k_SdT = k_STd.transpose(1, 2)
    if block.bias_S1T is None:
        scores_SQT = torch.baddbmm(q_SQd.new_empty(1, 1, 1), q_SQd, k_SdT, beta=0, alpha=scale)
    else:
        scores_SQT = torch.baddbmm(block.bias_S1T.to(q_SQd.dtype), q_SQd, k_SdT, alpha=scale)
    if sight.is_limited(block.tokens):
        scores_SQT.masked_fill_(~sight.seen(block.tokens, q_SQd.device), -torch.inf)
    return scores_SQT


def _by_head(tokens_GT: Rows, heads: int) -> Rows:
    """Rows of the given tokens, one head after the other in each text."""
    rows_GhT: Rows = tokens_GT[:, None, :] * heads + np.arange(heads)[:, None]
    return rows_GhT.ravel()


def _bias(sizes: Rows, tokens: int, heads: int, device: torch.device) -> Tensor | None:
    if (sizes == tokens).all():
        return None
    bias_GT = np.where(np.arange(tokens) < sizes[:, None], 0, _FAR_BELOW).astype(np.float32)
    return torch.from_numpy(bias_GT.repeat(heads, 0)[:, None]).to(device)
