"""The prepared data of two towers: queries, corpus, answers, and which passages may count as negatives.

A passage does not count as a negative if it answers the query, is a copy of an answer or of the query itself, or, if
configured, belongs to the same article as an answer. Texts are the same if their tokens are.
"""

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from holdfast.core.errors import RequestError
from holdfast.core.prepared import Manifest
from holdfast.data.shards import open_array, open_tokens
from holdfast.engine.data_order import Indices
from holdfast.engine.retrieval import judgements_of
from holdfast.engine.retrieval_items import Items, costs
from holdfast.engine.tower_options import TowerOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPassages:
    """The passages of a step, each once: answers and hard negatives."""

    rows_P: Indices
    target_B: Indices  # the passage that answers each example
    allowed_BP: NDArray[np.bool_]  # the answer, and what may count as a negative


class RetrievalData:
    """Queries and passages; an example is a query with one passage that answers it."""

    def __init__(self, folder: Path, manifest: Manifest, options: TowerOptions):
        self.is_text = manifest.form == "text"
        self.corpus = _open(folder, "corpus", self.is_text)
        self.queries = {split: _open(folder, split, self.is_text) for split in manifest.splits}
        qrels = {split: np.asarray(open_array(folder, f"{split}.qrels")) for split in manifest.splits}
        self._groups = np.asarray(open_array(folder, "corpus.groups")) if _has(folder, "corpus.groups") else None
        corpus_contents = contents(self.corpus)
        masked = self._groups if options.same_article == "masked" else None
        self.relevance = {
            split: Relevance(contents(queries), corpus_contents, qrels[split], masked)
            for split, queries in self.queries.items()
        }
        self.judgements = {split: judgements_of(rows) for split, rows in qrels.items()}
        self.query_E, self.answer_E = (np.ascontiguousarray(qrels["train"][:, at]) for at in (0, 1))
        if not len(self.query_E):
            raise RequestError("nothing to train on: no query of the training split has an answer")
        self._corpus_costs, self._query_costs = costs(self.corpus), costs(self.queries["train"])
        self.longest = int(max(self._corpus_costs.max(), self._query_costs.max()))
        self.lengths = self._query_costs[self.query_E] + self._corpus_costs[self.answer_E]
        self._hard_negatives = _hard_negatives(folder) if options.negatives else {}
        self._negatives = options.negatives

    @property
    def vector_sizes(self) -> tuple[int, int]:
        """How many numbers a query and a passage have."""
        return len(self.queries["train"][0]), len(self.corpus[0])

    def step_passages(self, examples: Indices, mined: NDArray[np.int32], rng: np.random.Generator) -> StepPassages:
        """The passages of a step: each example's answer, some of its given hard negatives, and its mined ones."""
        answers = self.answer_E[examples]
        wrong = [
            np.concatenate([self._given(int(at), rng), mined[row][mined[row] >= 0]]).astype(np.int64)
            for row, at in enumerate(examples)
        ]
        rows_P = np.unique(np.concatenate([answers, *wrong]))
        target_B = np.searchsorted(rows_P, answers)
        queries = self.query_E[examples]
        relevance = self.relevance["train"]
        allowed_BP = relevance.may_be_negative(queries, rows_P)
        for row, near in enumerate(wrong):
            if len(near):  # this query's hard negatives count even if they are of the same article
                allowed_BP[row, np.searchsorted(rows_P, near)] = ~relevance.are_answers(int(queries[row]), near)
        allowed_BP[np.arange(len(examples)), target_B] = True
        return StepPassages(rows_P=rows_P, target_B=target_B, allowed_BP=allowed_BP)

    def most_passages(self, examples: int, mined: int) -> int:
        """The most passages that a step with this many examples can have."""
        return examples * (1 + mined + (self._negatives if self._hard_negatives else 0))

    def step_items(self, examples: Indices, passages: Indices) -> tuple[list[NDArray[Any]], Indices]:
        """The queries and then the passages of a step, and the cost of each."""
        queries = self.query_E[examples]
        items = [self.queries["train"][int(at)] for at in queries] + [self.corpus[int(at)] for at in passages]
        return items, np.concatenate([self._query_costs[queries], self._corpus_costs[passages]])

    def _given(self, example: int, rng: np.random.Generator) -> Indices:
        near = self._hard_negatives.get(int(self.query_E[example]))
        return rng.permutation(near)[: self._negatives] if near is not None else np.zeros(0, dtype=np.int64)


def _open(folder: Path, name: str, is_text: bool) -> Items:
    return open_tokens(folder, name) if is_text else open_array(folder, f"{name}.vectors")


def _has(folder: Path, name: str) -> bool:
    return (folder / f"{name}.npy").is_file()


def _hard_negatives(folder: Path) -> dict[int, Indices]:
    """The given hard negatives of each query."""
    if not _has(folder, "train.negatives"):
        return {}
    found: dict[int, list[int]] = {}
    for query, passage in np.asarray(open_array(folder, "train.negatives")).tolist():
        found.setdefault(query, []).append(passage)
    return {query: np.array(passages, dtype=np.int64) for query, passages in found.items()}


def contents(items: Items) -> Indices:
    """A hash of each item's content."""
    digests = (hashlib.blake2b(items[at].tobytes(), digest_size=8).digest() for at in range(len(items)))
    return np.frombuffer(b"".join(digests), dtype=np.int64)


class RowsOf:
    """Finds the rows that hold a value."""

    def __init__(self, values: Indices):
        self._order = np.argsort(values, kind="stable")
        self._sorted = values[self._order]

    def pairs(self, wanted: Indices) -> tuple[Indices, Indices]:
        """Every pair of a wanted value's index and a row that holds it."""
        starts, ends = np.searchsorted(self._sorted, wanted, "left"), np.searchsorted(self._sorted, wanted, "right")
        counts = ends - starts
        within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        return np.repeat(np.arange(len(wanted)), counts), self._order[np.repeat(starts, counts) + within]


@dataclass(frozen=True, slots=True)
class ExcludedPassages:
    """What must not count as a negative for one query."""

    answers: Indices  # rows of the corpus
    contents: Indices  # of the answers, and of the query itself
    groups: Indices  # of the answers


class Relevance:
    """Which passages of a corpus are relevant for one split's queries. Without groups, articles are ignored."""

    def __init__(self, query_contents: Indices, corpus_contents: Indices, qrels: Indices, groups: Indices | None):
        self._query_contents, self._corpus_contents = query_contents, corpus_contents
        self._groups = groups if groups is not None else np.full(len(corpus_contents), -1)
        self._rows_of_content, self._rows_of_group = RowsOf(corpus_contents), RowsOf(self._groups)
        # By content, so that a query that occurs twice has the answers of both.
        answers: dict[int, set[int]] = {}
        for query, passage in qrels[:, :2].tolist():
            answers.setdefault(int(query_contents[query]), set()).add(passage)
        self._excluded = [self._look_up(int(own), answers) for own in query_contents]

    def hidden(self, query: int) -> Indices:
        """All rows of the corpus that must not count as negatives for a query."""
        known = self._excluded[query]
        same_text, same_group = self._rows_of_content.pairs(known.contents), self._rows_of_group.pairs(known.groups)
        return np.unique(np.concatenate([same_text[1], same_group[1]]))

    def itself(self, query: int) -> Indices:
        """Rows of the corpus that hold the query's own text and are not answers."""
        _, rows = self._rows_of_content.pairs(self._query_contents[[query]])
        return np.setdiff1d(rows, self._excluded[query].answers)

    def are_answers(self, query: int, passages: Indices) -> NDArray[np.bool_]:
        """Which of these passages answer a query, or are copies of an answer or of the query."""
        return np.isin(self._corpus_contents[passages], self._excluded[query].contents)

    def may_be_negative(self, queries: Indices, passages: Indices) -> NDArray[np.bool_]:
        """For each of these queries and passages, whether the passage may count as a negative."""
        allowed = np.ones((len(queries), len(passages)), dtype=bool)
        known = [self._excluded[query] for query in queries.tolist()]
        for values, wanted in (
            (self._corpus_contents[passages], [one.contents for one in known]),
            (self._groups[passages], [one.groups for one in known]),
        ):
            rows = np.repeat(np.arange(len(queries)), [len(one) for one in wanted])
            which, columns = RowsOf(values).pairs(np.concatenate(wanted))
            allowed[rows[which], columns] = False
        return allowed

    def _look_up(self, own: int, answers: dict[int, set[int]]) -> ExcludedPassages:
        rows = np.array(sorted(answers.get(own, ())), dtype=np.int64)
        groups = self._groups[rows]
        return ExcludedPassages(rows, np.append(self._corpus_contents[rows], own), np.unique(groups[groups >= 0]))
