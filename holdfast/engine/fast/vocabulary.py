"""Train only those rows of the embedding table that the data uses; the exported table is complete again."""

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.autograd import Function

from holdfast.engine.used_rows import decay_of, new_ids_of, used_rows, witness_row


class UsedRows:
    """The rows in use, which the model holds, and the complete table they came from."""

    def __init__(self, model: Any, table: nn.Embedding, used: NDArray[np.int64], kind: type[nn.Embedding]):
        self._model, self._table = model, table
        self._used = torch.from_numpy(used)
        self.new_ids = new_ids_of(used, table.num_embeddings)  # by old id
        witness = torch.from_numpy(witness_row(table.embedding_dim))
        rows = torch.cat([table.weight.data.cpu()[self._used], witness[None]])
        small = kind.from_pretrained(rows.to(table.weight), freeze=False, padding_idx=self._new_padding(used))
        model.set_input_embeddings(small)

    def take_old_ids(self) -> None:
        """Let the table in the model accept the tokenizer's ids, for models whose code compares ids."""
        small = self._model.get_input_embeddings()
        # A buffer, so that it moves with the table; not persistent, because the data determines it.
        small.register_buffer("new_ids", torch.from_numpy(self.new_ids), persistent=False)
        small.register_forward_pre_hook(lambda table, given: (table.new_ids[given[0]], *given[1:]))

    def restore(self) -> None:
        """Put the complete table back into the model, with trained rows and decayed ones."""
        rows = self._model.get_input_embeddings().weight.data.cpu()
        whole: Tensor = self._table.weight.data.cpu().mul_(decay_of(rows[-1].numpy()))
        whole[self._used] = rows[:-1]
        self._table.weight.data = whole
        self._model.set_input_embeddings(self._table)

    def _new_padding(self, used: NDArray[np.int64]) -> int | None:
        padding = self._table.padding_idx
        return int(self.new_ids[padding]) if padding is not None and padding in used else None


class RowEmbedding(nn.Embedding):
    """An embedding whose gradient holds only the rows that were looked up; `thread_pool` adds those."""

    def forward(self, ids: Tensor) -> Tensor:
        """Look up the rows."""
        rows: Tensor = _LookUp.apply(self.weight, ids, -1 if self.padding_idx is None else self.padding_idx)
        return rows


class _LookUp(Function):
    @staticmethod
    def forward(ctx, table, ids, padding):  # type: ignore[no-untyped-def]  # torch gives a context without a type
        ctx.save_for_backward(ids)
        ctx.shape, ctx.padding = table.shape, padding
        return nn.functional.embedding(ids, table)

    @staticmethod
    def backward(ctx, gradient):  # type: ignore[no-untyped-def]  # torch gives a context without a type
        (ids,) = ctx.saved_tensors
        used, places = np.unique(ids.numpy(), return_inverse=True)
        places_N = torch.from_numpy(places.reshape(ids.shape))
        rows = torch.ops.aten.embedding_dense_backward(gradient, places_N, len(used), -1, False)
        if ctx.padding in used:
            rows[np.searchsorted(used, ctx.padding)] = 0
        at = torch.from_numpy(used)[None]
        return torch.sparse_coo_tensor(at, rows, ctx.shape, is_coalesced=True, check_invariants=False), None, None


def keep_used_rows(
    model: Any, texts: Iterable[NDArray[np.int32]], kind: type[nn.Embedding] = nn.Embedding
) -> UsedRows | None:
    """Keep only the rows that these tokens and padding use; None if the table is also used elsewhere."""
    table = model.get_input_embeddings()
    if type(table) is not nn.Embedding or not table.weight.requires_grad or _is_shared(model, table):
        return None
    padding = getattr(model.config, "pad_token_id", None) or 0
    return UsedRows(model, table, used_rows(texts, table.num_embeddings, padding), kind)


def _is_shared(model: nn.Module, table: nn.Embedding) -> bool:
    """Whether the table is also used elsewhere, as by a tied output layer."""
    owners = [part for part in model.modules() for weight in part.parameters(recurse=False) if weight is table.weight]
    return len(owners) > 1
