"""Which passages must not count as wrong for a query.

Those that answer it, copies of them, the query's own text where the corpus holds it, and, where asked, other passages
of the same article. Texts are the same when their tokens are.
"""

import hashlib

import numpy as np
from numpy.typing import NDArray

from holdfast.engine.order import Indices
from holdfast.engine.towers import Items


def contents(items: Items) -> Indices:
    """A number for each item that is the same for items with the same content."""
    digests = (hashlib.blake2b(items[at].tobytes(), digest_size=8).digest() for at in range(len(items)))
    return np.frombuffer(b"".join(digests), dtype=np.int64)


class RowsOf:
    """Finds the rows that hold a value."""

    def __init__(self, values: Indices):
        self._order = np.argsort(values, kind="stable")
        self._sorted = values[self._order]

    def find(self, wanted: Indices) -> Indices:
        """All rows that hold one of these values."""
        starts, ends = np.searchsorted(self._sorted, wanted, "left"), np.searchsorted(self._sorted, wanted, "right")
        parts = [self._order[start:end] for start, end in zip(starts, ends, strict=True)]
        return np.concatenate(parts) if parts else np.zeros(0, dtype=np.int64)


class Judged:
    """The judgements of one split's queries over a corpus."""

    def __init__(self, query_contents: Indices, corpus_contents: Indices, qrels: Indices, groups: Indices | None):
        self._query_contents, self._corpus_contents, self._groups = query_contents, corpus_contents, groups
        self._rows_of_content = RowsOf(corpus_contents)
        self._rows_of_group = RowsOf(groups) if groups is not None else None
        # By content, so that a question asked twice in the same words has the answers of both.
        self._answers: dict[int, set[int]] = {}
        for query, passage in qrels[:, :2].tolist():
            self._answers.setdefault(int(query_contents[query]), set()).add(passage)

    def hidden(self, query: int) -> Indices:
        """All rows of the corpus that must not count as wrong for a query."""
        answers, contents_, groups = self._answers_of(query)
        rows = [answers, self._rows_of_content.find(contents_)]
        if self._rows_of_group is not None:
            rows.append(self._rows_of_group.find(groups))
        return np.unique(np.concatenate(rows))

    def answers(self, query: int, passages: Indices) -> NDArray[np.bool_]:
        """Which of these passages answer a query, or are copies of an answer or of the query."""
        return np.isin(self._corpus_contents[passages], self._answers_of(query)[1])

    def itself(self, query: int) -> Indices:
        """Rows of the corpus that hold the query's own text and are not an answer."""
        answers, _, _ = self._answers_of(query)
        return np.setdiff1d(self._rows_of_content.find(self._query_contents[[query]]), answers)

    def may_be_wrong(self, queries: Indices, passages: Indices) -> NDArray[np.bool_]:
        """For each of these queries and passages, whether the passage may count as wrong."""
        allowed = np.ones((len(queries), len(passages)), dtype=bool)
        passage_contents = self._corpus_contents[passages]
        passage_groups = self._groups[passages] if self._groups is not None else None
        for row, query in enumerate(queries.tolist()):
            _, contents_, groups = self._answers_of(query)
            allowed[row] = ~np.isin(passage_contents, contents_)
            if passage_groups is not None:
                allowed[row] &= ~np.isin(passage_groups, groups)
        return allowed

    def _answers_of(self, query: int) -> tuple[Indices, Indices, Indices]:
        """The rows that answer a query; the contents and the groups that must not count as wrong."""
        own = self._query_contents[query]
        answers = np.array(sorted(self._answers.get(int(own), ())), dtype=np.int64)
        groups = self._groups[answers] if self._groups is not None else np.zeros(0, dtype=np.int64)
        return answers, np.append(self._corpus_contents[answers], own), groups[groups >= 0]
