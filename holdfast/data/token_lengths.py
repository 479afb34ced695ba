"""Counts the tokens of every text, for a survey with a tokenizer."""

from array import array
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from holdfast.core.facts import Lengths
from holdfast.data.encoding_batches import EncodingBatches
from holdfast.data.examples import Example
from holdfast.data.sources import Sink
from holdfast.data.tally import ROLE_OF_PART, summarize
from holdfast.data.tokenizer import ModelTokenizer


class TokenLengths(Sink):
    """The lengths of the texts of each role in tokens, special tokens included."""

    def __init__(self, tokens: ModelTokenizer):
        self._tokens = tokens
        self._around = sum(map(len, tokens.marks))
        self._batches: dict[str, EncodingBatches] = {}
        self._counts: dict[str, array[int]] = {}

    def add(self, example: Example, path: Path, row: int) -> None:
        """Count the texts of one example."""
        for part, text in example.parts:
            self._add(ROLE_OF_PART[part], text)

    def add_passage(self, text: str, group: int) -> None:
        """Count a passage of a BEIR folder."""
        self._add("passage", text)

    def add_query(self, text: str) -> None:
        """Count a query of a BEIR folder."""
        self._add("query", text)

    def lengths(self) -> Mapping[str, Lengths]:
        """The lengths of all texts."""
        for batches in self._batches.values():
            batches.end()
        return {role: summarize("tokens", counts, self._tokens.limit) for role, counts in self._counts.items()}

    def _add(self, role: str, text: str) -> None:
        if role not in self._batches:
            self._counts[role] = array("I")
            self._batches[role] = EncodingBatches(self._tokens.encode, partial(self._take, role))
        self._batches[role].add(text, len(text))

    def _take(self, role: str, texts: list[str], encoded: list[list[int]]) -> None:
        self._counts[role].extend(len(ids) + self._around for ids in encoded)
