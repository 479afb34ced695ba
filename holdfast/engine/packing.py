"""Work on real tokens only: texts lie one after the other in one row, and attention stays inside each of them.

Every dense layer then sees (1, tokens, hidden) without a single padded position. Any Hugging Face model whose
attention goes through the library's attention interface can be packed.

N tokens, B texts, T tokens of one text, h heads, d of each head, H hidden.
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
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.modeling_outputs import BaseModelOutputWithPooling

from holdfast.data.shards import TokenArray
from holdfast.engine.attention import Attend, Layout, Sight
from holdfast.engine.draws import Draws
from holdfast.engine.order import Indices

ATTENTION = "holdfast_packed"
_LONGEST_IN_BLOCKS = 128  # tokens; beyond it, and where nothing is dropped, torch's own attention is faster


@dataclass(frozen=True, slots=True)
class Pack:
    """Some texts in one row."""

    ids_1N: Tensor
    positions_1N: Tensor
    lengths: list[int]
    first_B: Tensor  # index of each text's first token
    bounds: Tensor | None = None  # where each text starts, and the end; for kernels of a card that read it there
    longest: int = 0  # tokens of the longest text, or more


def pack(
    tokens: TokenArray,
    examples: Indices,
    device: str,
    position_offset: int = 0,
    new_ids: NDArray[np.int64] | None = None,
) -> Pack:
    """Lay texts one after the other, each with positions of its own; `new_ids` are those of engine.vocabulary."""
    texts = [tokens[int(at)] for at in examples]
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


class Now(local):
    """The texts of the current forward pass. A thread has one at a time."""

    def __init__(self) -> None:
        self.texts: Pack | None = None
        self.draws: Draws | None = None
        self.layouts: dict[tuple[int, bool], Layout] = {}

    def layout(self, heads: int, *, first_only: bool = False) -> Layout:
        """Where the texts' rows lie in blocks; made once for all layers."""
        assert self.texts is not None
        if (heads, first_only) not in self.layouts:
            device = self.texts.ids_1N.device
            self.layouts[heads, first_only] = Layout(self.texts.lengths, heads, device, first_only=first_only)
        return self.layouts[heads, first_only]

    @contextmanager
    def rows_are_texts(self) -> Iterator[None]:
        """For layers that work on one row a text."""
        if self.draws:
            self.draws.rows_are_texts = True
        try:
            yield
        finally:
            if self.draws:
                self.draws.rows_are_texts = False


now = Now()


@contextmanager
def packed(texts: Pack, draws: Draws | None = None) -> Iterator[None]:
    """Let the model's attention know where each text ends."""
    now.texts, now.draws, now.layouts = texts, draws, {}
    try:
        yield
    finally:
        now.texts, now.draws, now.layouts = None, None, {}


def pack_base(model: nn.Module, *, is_narrow: bool = False) -> None:
    """Let a model with a head take packed texts: its base gives the head one first token a text, as (B, 1, H).

    `is_narrow` says that the last layer gives first tokens already (see engine.last_layer).
    """
    base: Any = model.base_model
    inner = base.forward

    def forward(*args: Any, **kwargs: Any) -> Any:
        found = inner(*args, **kwargs)
        if now.texts is None:
            return found
        rows_NH = found.last_hidden_state[0]
        first_B1H = (rows_NH if is_narrow else rows_NH[now.texts.first_B])[:, None]
        pooler = getattr(base, "pooler", None)
        pooled_BH = pooler(first_B1H) if pooler else None
        return BaseModelOutputWithPooling(last_hidden_state=first_B1H, pooler_output=pooled_BH)

    base.forward = forward


def dropped_weights(module: nn.Module, layout: Layout, dropout: float, device: torch.device) -> list[Tensor] | None:
    """For each block what stays of its attention weights; None when nothing is dropped."""
    if not dropout or now.draws is None:
        return None
    site = int(module.draw_site)  # type: ignore[arg-type]  # given by replace_dropout
    shapes = [(block.texts, (layout.heads, block.asking, block.tokens)) for block in layout.blocks]
    return [now.draws.keep_block(site, texts, shape, dropout).to(device) for texts, shape in shapes]


def _attend(
    module: nn.Module, q_1hNd: Tensor, k_1hNd: Tensor, v_1hNd: Tensor, attention_mask: None, **kwargs: Any
) -> tuple[Tensor, None]:
    """Attention of each text to itself."""
    assert now.texts is not None
    window = kwargs.get("sliding_window")  # counts the token itself
    sight = Sight(bool(getattr(module, "is_causal", False)), window - 1 if window else None)
    if torch.is_autocast_enabled(kind := q_1hNd.device.type):  # rotary positions leave whole numbers
        half = torch.get_autocast_dtype(kind)
        q_1hNd, k_1hNd, v_1hNd = q_1hNd.to(half), k_1hNd.to(half), v_1hNd.to(half)
    if has_flash(q_1hNd):
        q_NhD, k_NhD, v_NhD = (x_1hNd[0].transpose(0, 1) for x_1hNd in (q_1hNd, k_1hNd, v_1hNd))
        return flash(q_NhD, k_NhD, v_NhD, kwargs.get("dropout", 0.0), sight, kwargs.get("scaling"))[None], None
    lengths, dropout = now.texts.lengths, kwargs.get("dropout", 0.0) if now.draws else 0.0
    scale = kwargs.get("scaling") or q_1hNd.shape[-1] ** -0.5
    gqa = q_1hNd.shape[1] // k_1hNd.shape[1]
    if dropout or max(lengths) <= _LONGEST_IN_BLOCKS:
        if gqa > 1:
            k_1hNd, v_1hNd = k_1hNd.repeat_interleave(gqa, 1), v_1hNd.repeat_interleave(gqa, 1)
        heads, d = q_1hNd.shape[1], q_1hNd.shape[3]
        layout = now.layout(heads)
        keep = dropped_weights(module, layout, dropout, q_1hNd.device)
        rows = [x_1hNd.transpose(1, 2).reshape(-1, d) for x_1hNd in (q_1hNd, k_1hNd, v_1hNd)]
        seen_Rd = Attend.apply(*rows, layout, scale, sight, keep, 1 / (1 - dropout))
        return seen_Rd.view(1, -1, heads, d), None
    # split and cat, not slices: the backward of a slice fills a tensor of the whole length, for every text.
    parts = zip(q_1hNd.split(lengths, 2), k_1hNd.split(lengths, 2), v_1hNd.split(lengths, 2), strict=True)
    return torch.cat([_alone(*part, sight, scale, gqa > 1) for part in parts], 2).transpose(1, 2), None


def _alone(q_1hTd: Tensor, k_1hTd: Tensor, v_1hTd: Tensor, sight: Sight, scale: float, gqa: bool) -> Tensor:
    """One text by torch's own attention."""
    tokens = q_1hTd.shape[2]
    is_windowed = sight.reach is not None and sight.reach < tokens - 1
    return scaled_dot_product_attention(
        q_1hTd,
        k_1hTd,
        v_1hTd,
        attn_mask=sight.seen(tokens, q_1hTd.device) if is_windowed else None,
        is_causal=sight.is_causal and not is_windowed,
        scale=scale,
        enable_gqa=gqa,
    )


def has_flash(q: Tensor) -> bool:
    """Whether the card's own attention over texts of any length takes these values."""
    return q.is_cuda and q.dtype in (torch.bfloat16, torch.float16)


def flash(
    q_NhD: Tensor,
    k_NhD: Tensor,
    v_NhD: Tensor,
    dropout: float,
    sight: Sight,
    scale: float | None,
    *,
    first_only: bool = False,
) -> Tensor:
    """Attention of each text to itself, or of its first token alone, read off `bounds` on the card."""
    assert now.texts is not None
    assert now.texts.bounds is not None
    bounds, longest = now.texts.bounds, now.texts.longest
    asking, most, texts = bounds, longest, len(q_NhD)
    if first_only:
        # A filler at the end must be asked too: the kernel leaves the gradient of what nobody asked unwritten.
        q_NhD = torch.cat([q_NhD, q_NhD.new_zeros(len(bounds) - 1 - texts, *q_NhD.shape[1:])])
        asking, most = torch.arange(len(bounds), dtype=torch.int32, device=bounds.device), 1
    reach = {} if sight.reach is None else {"window_size_left": sight.reach, "window_size_right": sight.reach}
    out: Tensor = torch.ops.aten._flash_attention_forward(
        q_NhD, k_NhD, v_NhD, asking, bounds, most, longest, dropout, sight.is_causal, False, scale=scale, **reach
    )[0]
    return out[:texts]


def _no_mask(*args: Any, **kwargs: Any) -> None:
    """Packed attention needs no mask."""


AttentionInterface.register(ATTENTION, _attend)
AttentionMaskInterface.register(ATTENTION, _no_mask)
