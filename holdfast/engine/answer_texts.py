"""The prepared texts of a language model, and which of their tokens are targets: those of the answers. numpy only."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from holdfast.core.errors import RequestError
from holdfast.core.prepared import Manifest
from holdfast.data.shards import TokenArray, open_array, open_tokens
from holdfast.engine.attempt_settings import AttemptSettings
from holdfast.engine.batches import micro_batches
from holdfast.engine.data_order import Indices, generator
from holdfast.engine.intervals import loss_intervals

# The summed loss and the target tokens of each of these batches of a split.
SummedLosses = Callable[[str, list[Indices]], NDArray[np.float64]]

_GROUPS = 400  # of texts, for the intervals of the metrics


class AnswerTexts:
    """Texts with flags: 1 for a token that is learned, 0 for one that is only read."""

    def __init__(self, settings: AttemptSettings, manifest: Manifest):
        folder, self._seed = settings.prepared_path, settings.seed
        self.texts: dict[str, TokenArray] = {split: open_tokens(folder, split) for split in manifest.splits}
        self._learn: dict[str, NDArray[Any]] = {
            split: open_array(folder, f"{split}.learn") for split in manifest.splits
        }
        self.lengths = self.texts["train"].lengths
        if not self._learn["train"].any():
            raise RequestError(
                "nothing to learn: no token of the training texts belongs to an answer",
                found=f"{len(self.lengths)} texts, {int(self.lengths.sum())} tokens, 0 of them targets",
                try_next=("raise --max-length so that answers are not truncated, or check the answer column",),
            )

    def flags(self, split: str, at: int) -> NDArray[Any]:
        """The flags of one text."""
        starts = self.texts[split].starts
        return self._learn[split][starts[at] : starts[at + 1]]

    def learned(self, examples: Indices) -> int:
        """What the loss of a step is divided by: the targets of its texts."""
        return max(1, sum(int(self.flags("train", int(at)).sum()) for at in examples))

    def targets(self, split: str, at: int) -> NDArray[np.int64]:
        """For each position of a text the next token if that is to be learned, or else -1."""
        text, learn = self.texts[split][at].astype(np.int64), self.flags(split, at)
        return np.append(np.where(learn[1:] > 0, text[1:], -1), -1)

    def evaluate(self, split: str, micro_tokens: int, summed: SummedLosses) -> dict[str, float]:
        """Loss and perplexity on the target tokens of a split."""
        texts = self.texts[split]
        return _loss_metrics(summed(split, list(micro_batches(np.arange(len(texts)), texts.lengths, micro_tokens))))

    def measured(self, split: str, micro_tokens: int, summed: SummedLosses) -> dict[str, object]:
        """The metrics and their intervals, from up to 400 groups of texts that were put together at random."""
        texts = self.texts[split]
        mixed = generator(self._seed, "intervals").permutation(len(texts))
        groups = np.array_split(mixed, min(len(texts), _GROUPS))
        cut = [list(micro_batches(group, texts.lengths, micro_tokens)) for group in groups]
        sums = summed(split, [batch for batches in cut for batch in batches])
        owners = np.repeat(np.arange(len(groups)), [len(batches) for batches in cut])
        losses, tokens = (np.bincount(owners, column, len(groups)).astype(float) for column in sums.T)
        return {**_loss_metrics(sums), "intervals": loss_intervals(losses, tokens, self._seed)}

    def show(self, examples: Indices) -> object:
        """The texts' tokens, and which of them are targets."""
        texts = self.texts["train"]
        return [
            {"example": int(at), "tokens": texts[int(at)].tolist(), "learn": self.flags("train", int(at)).tolist()}
            for at in examples
        ]


def _loss_metrics(sums: NDArray[np.float64]) -> dict[str, float]:
    """Metrics from the summed loss and the target tokens of some batches."""
    total, learned = sums.sum(0).tolist()
    loss = total / max(1, learned)
    return {"loss": loss, "negative_loss": -loss, "perplexity": math.exp(min(loss, 50.0))}
