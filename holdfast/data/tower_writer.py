"""What all ways of preparing two towers share: writing token arrays, numbering articles, reading near-misses."""

from array import array
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from holdfast.core.errors import RequestError
from holdfast.core.plan import Choice
from holdfast.data.near_misses import read_near_misses
from holdfast.data.request import DataRequest, Progress
from holdfast.data.shards import TextWriter, TokenWriter, write_array
from holdfast.data.tokens import Tokens, batches

Indices = NDArray[np.int64]


class TowerWriter:
    """Tokenizes texts into token arrays, cutting each to the length; counts what it wrote."""

    def __init__(self, tokens: Tokens, length: int, folder: Path, on_progress: Progress, whole: int):
        self._tokens, self._length, self._folder = tokens, length, folder
        self._on_progress, self._whole = on_progress, whole
        self._done = 0
        self.cut = 0
        self.token_counts: dict[str, int] = {}

    def write(self, name: str, texts: Iterable[str], prefix: str) -> None:
        """Write one token array, and the texts themselves where people will see them."""
        writer = TokenWriter(self._folder, name)
        shown = TextWriter(self._folder, name) if name != "train" else None
        before, after = self._tokens.marks
        room = self._length - len(before) - len(after)
        for batch in batches(texts):
            for body in self._tokens.encode([prefix + text for text in batch] if prefix else batch):
                self.cut += len(body) > room
                writer.add(before, body[:room], after)
            if shown:
                for text in batch:
                    shown.add(text)
            self._done += len(batch)
            self._on_progress("tokenizing", self._done, self._whole)
        self.token_counts[name] = writer.close()
        if shown:
            shown.close()


def manifest_of(writer: TowerWriter, rows: dict[str, int], choices: dict[str, Choice[str]]) -> dict[str, Any]:
    """What the manifest says of texts that were written."""
    because = f"{writer.cut:,} texts were longer and lost their end"
    return {
        "form": "text",
        "splits": {name: {"rows": count, "tokens": writer.token_counts[name]} for name, count in rows.items()},
        "corpus_tokens": writer.token_counts["corpus"],
        "overlong_rows": writer.cut,
        "choices": {"overlong": Choice("truncate", because), **choices},
    }


def add_near_misses(
    request: DataRequest,
    find_query: Callable[[str], int | None],
    find_passage: Callable[[str], int | None],
    pairs: "array[int]",
) -> dict[str, Choice[str]]:
    """Add the near-misses of the user's file to (query, passage) pairs; says how many fit the data."""
    if request.negatives is None:
        return {}
    lines = strangers = lost = 0
    before = len(pairs)
    for query_text, texts in read_near_misses(request):
        lines += 1
        query = find_query(query_text)
        if query is None:
            strangers += 1
            continue
        for text in texts:
            passage = find_passage(text)
            lost += passage is None
            if passage is not None:
                pairs.extend((query, passage))
    added = (len(pairs) - before) // 2
    seen = f"{lines:,} lines; {strangers:,} with a query that is not trained on, {lost:,} passages that are not there"
    if not added:
        raise RequestError(f"no near-miss of {request.negatives.name} fits the data", seen=seen)
    return {"near-misses": Choice(f"{added:,}", seen)}


def numbered(hashes: "array[int]") -> Indices:
    """Groups by number; -1 where there is none."""
    values = np.asarray(hashes, dtype=np.uint64)
    _, numbers = np.unique(values, return_inverse=True)
    return np.where(values == 0, -1, numbers).astype(np.int64)


def as_table(flat: "array[int]", width: int) -> Indices:
    """Flat numbers as rows of a table."""
    return np.asarray(flat, dtype=np.int64).reshape(-1, width)


def write_table(folder: Path, name: str, flat: "array[int]", width: int) -> None:
    """Write flat numbers as a table."""
    write_array(folder, name, as_table(flat, width), np.int64)
