"""Compute without padding: texts are concatenated in one row, and attention stays within each of them.

Every dense layer then sees (1, tokens, hidden) without any padding. Any Hugging Face model whose attention goes
through the library's attention interface can be packed. On a device that compiles every new shape the texts are placed
in several rows of a few sizes instead (see `row_layout`).

N tokens, B texts, R rows of T places (one row of all tokens where shapes may vary), h heads, d of each head, H hidden.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from threading import local
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface
from transformers.modeling_outputs import BaseModelOutputWithPooling

from holdfast.data.shards import TokenArray
from holdfast.engine.data_order import Indices
from holdfast.engine.fast.attention import Attend, AttentionSpan, PackedLayout
from holdfast.engine.fast.rng import DropoutRng
from holdfast.engine.row_layout import compiles_every_shape, lay_out

ATTENTION = "holdfast_packed"
_LONGEST_IN_BLOCKS = 128  # tokens; for longer texts without dropout torch's own attention is faster


@dataclass(frozen=True, slots=True)
class Pack:
    """Some texts in one row, or in rows of a few sizes."""

    ids_RT: Tensor
    positions_RT: Tensor
    lengths: list[int]
    first_B: Tensor  # index of each text's first token
    bounds: Tensor | None = None  # where each text starts, and the end; read on the GPU by its kernels
    longest: int = 0  # tokens of the longest text, or more
    texts_RT: Tensor | None = None  # which text each place belongs to; only with rows of a few sizes
    places_N: NDArray[np.int64] | None = None  # where the texts' tokens are in those rows


def pack(
    tokens: TokenArray,
    examples: Indices,
    device: str,
    position_offset: int = 0,
    new_ids: NDArray[np.int64] | None = None,
) -> Pack:
    """Concatenate texts, each with its own positions; `new_ids` are those of `vocabulary`."""
    texts = [tokens[int(at)] for at in examples]
    if compiles_every_shape(device):
        return _pack_in_rows(texts, device, position_offset, new_ids)
    lengths = [len(text) for text in texts]
    starts = np.concatenate([[0], np.cumsum(lengths)[:-1]]).astype(np.int64)
    positions = np.concatenate([np.arange(length) for length in lengths]) + position_offset
    old_ids = np.concatenate(texts)
    ids = old_ids.astype(np.int64) if new_ids is None else new_ids[old_ids]
    bounds = torch.from_numpy(np.append(starts, len(ids)).astype(np.int32)).to(device, non_blocking=True)
    return Pack(
        torch.from_numpy(ids)[None].to(device, non_blocking=True),
        torch.from_numpy(positions)[None].to(device, non_blocking=True),
        lengths,
        torch.from_numpy(starts).to(device, non_blocking=True),
        bounds,
        max(lengths),
    )


def _pack_in_rows(
    texts: list[NDArray[np.int32]], device: str, position_offset: int, new_ids: NDArray[np.int64] | None
) -> Pack:
    lengths = [len(text) for text in texts]
    layout = lay_out(lengths)
    old_ids, rows = np.concatenate(texts), layout.texts_RT.shape
    ids_RT, positions_RT = np.zeros(rows, dtype=np.int64), np.full(rows, position_offset)
    ids_RT.flat[layout.places_N] = old_ids if new_ids is None else new_ids[old_ids]
    positions_RT.flat[layout.places_N] += np.concatenate([np.arange(length) for length in lengths])
    # One copy, which is waited for: before torch 2.13 an asynchronous copy to MPS could read memory already freed
    # (pytorch#139550), and each copy that is waited for drains the GPU's queue.
    sizes = [ids_RT.size] * 3 + [len(layout.first_B)]
    arrays = np.concatenate([ids_RT.ravel(), positions_RT.ravel(), layout.texts_RT.ravel(), layout.first_B])
    ids_N, positions_N, texts_N, first_B = torch.from_numpy(arrays).to(device).split(sizes)
    return Pack(
        ids_N.view(rows),
        positions_N.view(rows),
        lengths,
        first_B,
        longest=max(lengths),
        texts_RT=texts_N.view(rows),
        places_N=layout.places_N,
    )


class CurrentPass(local):
    """The texts of the forward pass that this thread is in. Attention has no other way to learn where texts end."""

    def __init__(self) -> None:
        self.texts: Pack | None = None
        self.rng: DropoutRng | None = None
        self.layouts: dict[tuple[int, bool], PackedLayout] = {}
        self.biases: dict[AttentionSpan, Tensor] = {}

    def layout(self, heads: int, *, first_only: bool = False) -> PackedLayout:
        """Where the texts' rows are in blocks; made once for all layers."""
        assert self.texts is not None
        if (heads, first_only) not in self.layouts:
            device = self.texts.ids_RT.device
            self.layouts[heads, first_only] = PackedLayout(self.texts.lengths, heads, device, first_only=first_only)
        return self.layouts[heads, first_only]

    def bias(self, texts_RT: Tensor, span: AttentionSpan) -> Tensor:
        """What attention within rows adds to its scores, (R, 1, T, T): 0 within a text; made once for all layers."""
        if span not in self.biases:
            seen_RTT = texts_RT[:, None, :] == texts_RT[:, :, None]
            if span.is_limited(texts_RT.shape[1]):
                seen_RTT = seen_RTT & span.seen(texts_RT.shape[1], texts_RT.device)
            bias_RTT = torch.zeros(seen_RTT.shape, device=texts_RT.device)
            self.biases[span] = bias_RTT.masked_fill_(~seen_RTT, -torch.inf)[:, None]  # each place sees itself
        return self.biases[span]

    @contextmanager
    def rows_are_texts(self) -> Iterator[None]:
        """For layers that work on one row per text."""
        if self.rng:
            self.rng.rows_are_texts = True
        try:
            yield
        finally:
            if self.rng:
                self.rng.rows_are_texts = False


now = CurrentPass()


@contextmanager
def packed(texts: Pack, rng: DropoutRng | None = None) -> Iterator[None]:
    """Tell the model's attention where each text ends."""
    now.texts, now.rng, now.layouts, now.biases = texts, rng, {}, {}
    try:
        yield
    finally:
        now.texts, now.rng, now.layouts, now.biases = None, None, {}, {}


def pack_base(model: nn.Module, *, is_narrow: bool = False) -> None:
    """Let a model with a head take packed texts: its base gives the head the first token of each text, as (B, 1, H).

    With `is_narrow` the last layer already returns first tokens only (see `encoder_layer`).
    """
    base: Any = model.base_model
    inner = base.forward

    def forward(*args: Any, **kwargs: Any) -> Any:
        found = inner(*args, **kwargs)
        if now.texts is None:
            return found
        rows_NH = found.last_hidden_state.flatten(0, 1)
        first_B1H = (rows_NH if is_narrow else rows_NH[now.texts.first_B])[:, None]
        pooler = getattr(base, "pooler", None)
        pooled_BH = pooler(first_B1H) if pooler else None
        return BaseModelOutputWithPooling(last_hidden_state=first_B1H, pooler_output=pooled_BH)

    base.forward = forward


def dropped_weights(
    module: nn.Module, layout: PackedLayout, dropout: float, device: torch.device
) -> list[Tensor] | None:
    """The dropout mask of each block's attention weights; None without dropout."""
    if not dropout or now.rng is None:
        return None
    site = int(module.rng_site)  # type: ignore[arg-type]  # set by replace_dropout
    shapes = [(block.texts, (layout.heads, block.queries, block.tokens)) for block in layout.blocks]
    return [now.rng.keep_block(site, texts, shape, dropout).to(device) for texts, shape in shapes]


def _attend(
    module: nn.Module, q_1hNd: Tensor, k_1hNd: Tensor, v_1hNd: Tensor, attention_mask: None, **kwargs: Any
) -> tuple[Tensor, None]:
    """Attention within each text, as transformers calls it."""
    assert now.texts is not None
    window = kwargs.get("sliding_window")  # includes the token itself
    span = AttentionSpan(bool(getattr(module, "is_causal", False)), window - 1 if window else None)
    if torch.is_autocast_enabled(kind := q_1hNd.device.type):  # rotary embeddings return float32
        half = torch.get_autocast_dtype(kind)
        q_1hNd, k_1hNd, v_1hNd = q_1hNd.to(half), k_1hNd.to(half), v_1hNd.to(half)
    if now.texts.texts_RT is not None:
        return _attend_in_rows(q_1hNd, k_1hNd, v_1hNd, now.bias(now.texts.texts_RT, span), **kwargs), None
    if has_flash(q_1hNd):
        q_NhD, k_NhD, v_NhD = (x_1hNd[0].transpose(0, 1) for x_1hNd in (q_1hNd, k_1hNd, v_1hNd))
        return flash(q_NhD, k_NhD, v_NhD, kwargs.get("dropout", 0.0), span, kwargs.get("scaling"))[None], None
    lengths, dropout = now.texts.lengths, kwargs.get("dropout", 0.0) if now.rng else 0.0
    scale = kwargs.get("scaling") or q_1hNd.shape[-1] ** -0.5
    gqa = q_1hNd.shape[1] // k_1hNd.shape[1]
    if dropout or max(lengths) <= _LONGEST_IN_BLOCKS:
        if gqa > 1:
            k_1hNd, v_1hNd = k_1hNd.repeat_interleave(gqa, 1), v_1hNd.repeat_interleave(gqa, 1)
        heads, d = q_1hNd.shape[1], q_1hNd.shape[3]
        layout = now.layout(heads)
        keep = dropped_weights(module, layout, dropout, q_1hNd.device)
        rows = [x_1hNd.transpose(1, 2).reshape(-1, d) for x_1hNd in (q_1hNd, k_1hNd, v_1hNd)]
        seen_Rd = Attend.apply(*rows, layout, scale, span, keep, 1 / (1 - dropout))
        return seen_Rd.view(1, -1, heads, d), None
    # split and cat, not slices: the backward of a slice fills a tensor of the whole length, for every text.
    parts = zip(q_1hNd.split(lengths, 2), k_1hNd.split(lengths, 2), v_1hNd.split(lengths, 2), strict=True)
    return torch.cat([_alone(*part, span, scale, gqa > 1) for part in parts], 2).transpose(1, 2), None


def _attend_in_rows(q_RhTd: Tensor, k_RhTd: Tensor, v_RhTd: Tensor, bias_R1TT: Tensor, **kwargs: Any) -> Tensor:
    """Attention within the texts of each row, in the arithmetic that training and evaluation on MPS share.

    Not torch's own attention: on MPS that has one kernel for training and others, with known faults, for evaluation.
    """
    heads, kv_heads = q_RhTd.shape[1], k_RhTd.shape[1]
    if heads > kv_heads:
        k_RhTd, v_RhTd = (x_RhTd.repeat_interleave(heads // kv_heads, 1) for x_RhTd in (k_RhTd, v_RhTd))
    scale = kwargs.get("scaling") or q_RhTd.shape[-1] ** -0.5
    scores_RhTT = torch.matmul(q_RhTd * scale, k_RhTd.transpose(2, 3)) + bias_R1TT.to(q_RhTd.dtype)
    weights_RhTT = torch.softmax(scores_RhTT, -1)
    if dropout := kwargs.get("dropout", 0.0):
        weights_RhTT = functional.dropout(weights_RhTT, dropout)
    return torch.matmul(weights_RhTT, v_RhTd).transpose(1, 2)


def _alone(q_1hTd: Tensor, k_1hTd: Tensor, v_1hTd: Tensor, span: AttentionSpan, scale: float, gqa: bool) -> Tensor:
    """One text by torch's own attention."""
    tokens = q_1hTd.shape[2]
    is_windowed = span.reach is not None and span.reach < tokens - 1
    return scaled_dot_product_attention(
        q_1hTd,
        k_1hTd,
        v_1hTd,
        attn_mask=span.seen(tokens, q_1hTd.device) if is_windowed else None,
        is_causal=span.is_causal and not is_windowed,
        scale=scale,
        enable_gqa=gqa,
    )


def has_flash(q: Tensor) -> bool:
    """Whether flash attention over texts of varying length takes these values."""
    return q.is_cuda and q.dtype in (torch.bfloat16, torch.float16)


def flash(
    q_NhD: Tensor,
    k_NhD: Tensor,
    v_NhD: Tensor,
    dropout: float,
    span: AttentionSpan,
    scale: float | None,
    *,
    first_only: bool = False,
) -> Tensor:
    """Flash attention within each text, or of its first token alone; the GPU reads where texts end from `bounds`."""
    assert now.texts is not None
    assert now.texts.bounds is not None
    bounds, longest = now.texts.bounds, now.texts.longest
    query_bounds, longest_query, texts = bounds, longest, len(q_NhD)
    if first_only:
        # The filler at the end needs a query too: the kernel leaves the gradient of unqueried texts unwritten.
        q_NhD = torch.cat([q_NhD, q_NhD.new_zeros(len(bounds) - 1 - texts, *q_NhD.shape[1:])])
        query_bounds, longest_query = torch.arange(len(bounds), dtype=torch.int32, device=bounds.device), 1
    reach = {} if span.reach is None else {"window_size_left": span.reach, "window_size_right": span.reach}
    bounds_and_lengths = query_bounds, bounds, longest_query, longest
    out: Tensor = torch.ops.aten._flash_attention_forward(
        q_NhD, k_NhD, v_NhD, *bounds_and_lengths, dropout, span.is_causal, False, scale=scale, **reach
    )[0]
    return out[:texts]


# Not registered with AttentionMaskInterface too: transformers then makes no mask, for which it would have to wait for
# the GPU in every forward pass.
AttentionInterface.register(ATTENTION, _attend)
