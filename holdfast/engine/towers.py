"""Towers turn a text or a precomputed vector into an embedding of length 1.

B items of a micro-batch, N tokens of them, T of the longest, H size of an embedding.
"""

from collections.abc import Sequence

import msgspec
import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from holdfast.data.shards import TokenArray
from holdfast.engine.attempt_settings import AttemptSettings
from holdfast.engine.batches import micro_batches
from holdfast.engine.fast.packing import Pack, pack, packed
from holdfast.engine.fast.rng import DropoutRng
from holdfast.engine.padding import pad
from holdfast.engine.ranks import ALONE, Ranks
from holdfast.engine.retrieval_items import Item, Items, costs
from holdfast.engine.row_layout import count_with_filler


class TextTower(nn.Module):
    """An encoder with mean pooling or the first token's state."""

    def __init__(self, body: nn.Module, pooling: str, position_offset: int | None, rng: DropoutRng | None):
        super().__init__()
        self.body, self.pooling = body, pooling
        self.position_offset, self._rng = position_offset, rng
        self.is_packed = position_offset is not None
        self._device = str(next(body.parameters()).device)

    def forward(self, texts: Sequence[Item]) -> Tensor:
        """Embeddings of these texts, (B, H); rows that fill up the shape may follow."""
        pooled_BH = self._padded(texts) if self.position_offset is None else self._packed(texts, self.position_offset)
        return functional.normalize(pooled_BH, dim=-1)

    def _packed(self, texts: Sequence[Item], offset: int) -> Tensor:
        starts = np.cumsum([0, *map(len, texts)])
        row = pack(TokenArray(np.concatenate(texts), starts), np.arange(len(texts)), self._device, offset)
        return self._pooled(row)

    def embed_row(self, row: Pack) -> Tensor:
        """Embeddings of texts that are already packed, (B, H)."""
        return functional.normalize(self._pooled(row), dim=-1)

    def _pooled(self, row: Pack) -> Tensor:
        with packed(row, self._rng):
            found = self.body(input_ids=row.ids_RT, position_ids=row.positions_RT)
        hidden_NH: Tensor = found.last_hidden_state.flatten(0, 1).float()
        if self.pooling == "cls":
            return hidden_NH[row.first_B]
        if row.texts_RT is not None or not row.lengths:
            return _means(hidden_NH, row)
        # 8 ms for 8,267 x 384 and 64 texts on 2 cores; index_add takes 57 ms, and on a GPU its order is not fixed.
        lengths_B = torch.tensor(row.lengths, device=hidden_NH.device)
        return torch.segment_reduce(hidden_NH, "mean", lengths=lengths_B, unsafe=True)

    def _padded(self, texts: Sequence[Item]) -> Tensor:
        ids_BT, mask_BT = pad(texts, getattr(self.body.config, "pad_token_id", None) or 0, self._device)
        hidden_BTH: Tensor = self.body(input_ids=ids_BT, attention_mask=mask_BT).last_hidden_state.float()
        if self.pooling == "cls":
            return hidden_BTH[:, 0]
        return (hidden_BTH * mask_BT[..., None]).sum(1) / mask_BT.sum(1, keepdim=True)


def _means(hidden_NH: Tensor, row: Pack) -> Tensor:
    """The mean of each text by one matrix product, so the order is fixed: for captured steps, and for MPS.

    MPS has no kernel for `segment_reduce` (pytorch#197880).
    """
    texts, device = len(row.first_B), hidden_NH.device
    if row.texts_RT is not None:
        is_own_BN = row.texts_RT.flatten() == torch.arange(texts, device=device)[:, None]
        share_BN = is_own_BN / is_own_BN.sum(1, keepdim=True).clamp(min=1)
    else:
        assert row.bounds is not None
        starts_B1, ends_B1 = row.bounds[:texts, None], row.bounds[1 : texts + 1, None]
        at_N = torch.arange(len(hidden_NH), device=device)
        share_BN = ((at_N >= starts_B1) & (at_N < ends_B1)) / (ends_B1 - starts_B1)
    with torch.autocast(hidden_NH.device.type, enabled=False):
        return share_BN @ hidden_NH


@torch.no_grad()
def embed_all(tower: nn.Module, items: Items, settings: AttemptSettings, ranks: Ranks = ALONE) -> Tensor:
    """Embeddings of many items, in order; items of similar length are embedded together."""
    tower.eval()
    micros = list(micro_batches(np.arange(len(items)), costs(items), settings.micro_tokens))

    def embed_own() -> Tensor:
        found_BH: Tensor | None = None
        for micro, counts in ranks.own_share(micros):
            with settings.autocast():
                part_BH: Tensor = tower([items[int(at)] for at in micro])[: len(micro)]
            if found_BH is None:
                found_BH = part_BH.new_zeros((len(items), part_BH.shape[1]))
            if counts:
                found_BH[torch.from_numpy(micro).to(part_BH.device)] = part_BH
        assert found_BH is not None
        return found_BH

    return ranks.all_reduce(ranks.independently(embed_own))


class TowerShape(msgspec.Struct, frozen=True, kw_only=True):
    """The shape of a tower over vectors; its config.json."""

    size_in: int
    size: int
    hidden: int = 0
    dropout: float = 0.1


class VectorTower(nn.Module):
    """A light tower over given vectors: a projection plus a hidden layer that adds nothing at first.

    So training starts from the similarity of the vectors themselves.
    """

    def __init__(self, shape: TowerShape):
        super().__init__()
        self.is_packed = True
        self.shape = shape
        size_in, size, hidden = shape.size_in, shape.size, shape.hidden
        self.project = nn.Linear(size_in, size, bias=False)
        nn.init.eye_(self.project.weight) if size == size_in else nn.init.orthogonal_(self.project.weight)
        self.beside: nn.Module | None = None
        if hidden:
            widen, narrow = nn.Linear(size_in, hidden), nn.Linear(hidden, size)
            nn.init.zeros_(narrow.weight)
            nn.init.zeros_(narrow.bias)
            self.beside = nn.Sequential(widen, nn.GELU(), nn.Dropout(shape.dropout), narrow)

    def forward(self, vectors: Sequence[Item]) -> Tensor:
        """Embeddings of these vectors, (B, H); rows that fill up the shape may follow."""
        device = self.project.weight.device
        idle = count_with_filler(len(vectors), str(device)) - len(vectors)
        rows = [*vectors, *[np.zeros_like(vectors[0])] * idle]
        given_BD = torch.from_numpy(np.stack(rows).astype(np.float32)).to(device)
        made_BH: Tensor = self.project(given_BD)
        if self.beside:
            made_BH = made_BH + self.beside(given_BD)
        return functional.normalize(made_BH.float(), dim=-1)
