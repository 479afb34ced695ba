"""Which passages must not count as wrong for a query.

Those that answer it, copies of them, the query's own text where the corpus holds it, and, where asked, other passages
of the same article. Texts are the same when their tokens are.
"""

import hashlib
from dataclasses import dataclass

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

    def pairs(self, wanted: Indices) -> tuple[Indices, Indices]:
        """Every pair of a wanted value, by its place, and a row that holds it."""
        starts, ends = np.searchsorted(self._sorted, wanted, "left"), np.searchsorted(self._sorted, wanted, "right")
        counts = ends - starts
        within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        return np.repeat(np.arange(len(wanted)), counts), self._order[np.repeat(starts, counts) + within]


@dataclass(frozen=True, slots=True)
class NotWrong:
    """What must not count as wrong for one query."""

    answers: Indices  # rows of the corpus
    contents: Indices  # of the answers, and of the query itself
    groups: Indices  # of the answers


class Judged:
    """The judgements of one split's queries over a corpus. Without groups, articles play no part."""

    def __init__(self, query_contents: Indices, corpus_contents: Indices, qrels: Indices, groups: Indices | None):
        self._query_contents, self._corpus_contents = query_contents, corpus_contents
        self._groups = groups if groups is not None else np.full(len(corpus_contents), -1)
        self._rows_of_content, self._rows_of_group = RowsOf(corpus_contents), RowsOf(self._groups)
        # By content, so that a question asked twice in the same words has the answers of both.
        answers: dict[int, set[int]] = {}
        for query, passage in qrels[:, :2].tolist():
            answers.setdefault(int(query_contents[query]), set()).add(passage)
        self._not_wrong = [self._look_up(int(own), answers) for own in query_contents]

    def hidden(self, query: int) -> Indices:
        """All rows of the corpus that must not count as wrong for a query."""
        known = self._not_wrong[query]
        same_text, same_group = self._rows_of_content.pairs(known.contents), self._rows_of_group.pairs(known.groups)
        return np.unique(np.concatenate([same_text[1], same_group[1]]))

    def itself(self, query: int) -> Indices:
        """Rows of the corpus that hold the query's own text and are not an answer."""
        _, rows = self._rows_of_content.pairs(self._query_contents[[query]])
        return np.setdiff1d(rows, self._not_wrong[query].answers)

    def are_answers(self, query: int, passages: Indices) -> NDArray[np.bool_]:
        """Which of these passages answer a query, or are copies of an answer or of the query."""
        return np.isin(self._corpus_contents[passages], self._not_wrong[query].contents)

    def may_be_wrong(self, queries: Indices, passages: Indices) -> NDArray[np.bool_]:
        """For each of these queries and passages, whether the passage may count as wrong."""
        allowed = np.ones((len(queries), len(passages)), dtype=bool)
        known = [self._not_wrong[query] for query in queries.tolist()]
        for values, wanted in (
            (self._corpus_contents[passages], [one.contents for one in known]),
            (self._groups[passages], [one.groups for one in known]),
        ):
            rows = np.repeat(np.arange(len(queries)), [len(one) for one in wanted])
            which, columns = RowsOf(values).pairs(np.concatenate(wanted))
            allowed[rows[which], columns] = False
        return allowed

    def _look_up(self, own: int, answers: dict[int, set[int]]) -> NotWrong:
        rows = np.array(sorted(answers.get(own, ())), dtype=np.int64)
        groups = self._groups[rows]
        return NotWrong(rows, np.append(self._corpus_contents[rows], own), np.unique(groups[groups >= 0]))
