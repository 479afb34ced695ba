"""Prepared data: flat memory-mapped arrays that the engine slices, and a manifest written last.

A token array is two files: all tokens one after the other, and where each text starts. Reading a batch is slicing;
nothing is decoded, copied or handed between processes.

Two-tower folders hold the passages of all splits once, and each split's queries:

    corpus              token array, or `corpus.vectors.npy` (passages, size) where the manifest says "vectors"
    corpus.groups.npy   article of each passage, -1 for none; the file may be absent
    SPLIT               token array of the split's queries, or `SPLIT.vectors.npy`
    SPLIT.qrels.npy     (judgements, 3) int64: query, passage, score of 1 or more; each one of "train" is an example
    train.negatives.npy (near-misses, 2) int64: query, passage that is known not to answer it; may be absent

The manifest has "task", "splits", "form" ("text" or "vectors") and, for texts, "max_length" in tokens.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class TokenArray:
    """Texts as token ids, one after the other."""

    tokens: NDArray[np.int32]
    starts: NDArray[np.int64]  # one more than there are texts

    def __len__(self) -> int:
        return len(self.starts) - 1

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Tokens of each text."""
        return np.diff(self.starts)

    def __getitem__(self, at: int) -> NDArray[np.int32]:
        return self.tokens[self.starts[at] : self.starts[at + 1]]


def open_tokens(folder: Path, name: str) -> TokenArray:
    """Open a token array without reading it into memory."""
    return TokenArray(
        np.load(folder / f"{name}.tokens.npy", mmap_mode="r"), np.load(folder / f"{name}.starts.npy", mmap_mode="r")
    )


def open_array(folder: Path, name: str) -> NDArray[np.generic]:
    """Open one plain array, such as labels."""
    array: NDArray[np.generic] = np.load(folder / f"{name}.npy", mmap_mode="r")
    return array


def write_tokens(folder: Path, name: str, texts: list[list[int]]) -> None:
    """Write texts that fit in memory as a token array."""
    starts = np.zeros(len(texts) + 1, dtype=np.int64)
    np.cumsum([len(text) for text in texts], out=starts[1:])
    tokens = np.fromiter((token for text in texts for token in text), dtype=np.int32, count=int(starts[-1]))
    np.save(folder / f"{name}.tokens.npy", tokens)
    np.save(folder / f"{name}.starts.npy", starts)
