"""The prepared data of two towers: queries, the corpus, who answers whom, and the passages that a step works on."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from holdfast.core.errors import RequestError
from holdfast.data.shards import open_array, open_tokens
from holdfast.engine.judged import Judged, contents
from holdfast.engine.order import Indices
from holdfast.engine.retrieval import judgements_of
from holdfast.engine.tower_options import TowerOptions
from holdfast.engine.towers import Items, costs


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPassages:
    """The passages of a step, each once: answers and near-misses."""

    rows_P: Indices
    target_B: Indices  # which of them answers each example
    allowed_BP: NDArray[np.bool_]  # the answer, and what may count as wrong


class Pairs:
    """Queries and passages; an example is a query with one passage that answers it."""

    def __init__(self, folder: Path, manifest: dict[str, Any], options: TowerOptions):
        self.is_text = manifest["form"] == "text"
        self.corpus = _open(folder, "corpus", self.is_text)
        self.queries = {split: _open(folder, split, self.is_text) for split in manifest["splits"]}
        qrels = {split: np.asarray(open_array(folder, f"{split}.qrels")) for split in manifest["splits"]}
        self._groups = np.asarray(open_array(folder, "corpus.groups")) if _has(folder, "corpus.groups") else None
        corpus_contents = contents(self.corpus)
        masked = self._groups if options.same_article == "masked" else None
        self.judged = {
            split: Judged(contents(queries), corpus_contents, qrels[split], masked)
            for split, queries in self.queries.items()
        }
        self.judgements = {split: judgements_of(rows) for split, rows in qrels.items()}
        self.query_E, self.answer_E = (np.ascontiguousarray(qrels["train"][:, at]) for at in (0, 1))
        if not len(self.query_E):
            raise RequestError("there is nothing to train on: no query of the training split has an answer")
        self._corpus_costs, self._query_costs = costs(self.corpus), costs(self.queries["train"])
        self.longest = int(max(self._corpus_costs.max(), self._query_costs.max()))
        self.lengths = self._query_costs[self.query_E] + self._corpus_costs[self.answer_E]
        self._near_misses = _near_misses(folder) if options.negatives else {}
        self._negatives = options.negatives

    @property
    def vector_sizes(self) -> tuple[int, int]:
        """How many numbers a query and a passage have."""
        return len(self.queries["train"][0]), len(self.corpus[0])

    def step_passages(self, examples: Indices, mined: NDArray[np.int32], draws: np.random.Generator) -> StepPassages:
        """The passages of a step: each example's answer, some of its given near-misses, and its mined ones."""
        answers = self.answer_E[examples]
        wrong = [
            np.concatenate([self._given(int(at), draws), mined[row][mined[row] >= 0]]).astype(np.int64)
            for row, at in enumerate(examples)
        ]
        rows_P = np.unique(np.concatenate([answers, *wrong]))
        target_B = np.searchsorted(rows_P, answers)
        queries = self.query_E[examples]
        judged = self.judged["train"]
        allowed_BP = judged.may_be_wrong(queries, rows_P)
        for row, near in enumerate(wrong):
            if len(near):  # near-misses of this very query count although they may be of the same article
                allowed_BP[row, np.searchsorted(rows_P, near)] = ~judged.are_answers(int(queries[row]), near)
        allowed_BP[np.arange(len(examples)), target_B] = True
        return StepPassages(rows_P=rows_P, target_B=target_B, allowed_BP=allowed_BP)

    def most_passages(self, examples: int, mined: int) -> int:
        """How many passages a step of so many examples may have."""
        return examples * (1 + mined + (self._negatives if self._near_misses else 0))

    def step_items(self, examples: Indices, passages: Indices) -> tuple[list[NDArray[Any]], Indices]:
        """The queries and then the passages of a step, and what each costs."""
        queries = self.query_E[examples]
        items = [self.queries["train"][int(at)] for at in queries] + [self.corpus[int(at)] for at in passages]
        return items, np.concatenate([self._query_costs[queries], self._corpus_costs[passages]])

    def _given(self, example: int, draws: np.random.Generator) -> Indices:
        near = self._near_misses.get(int(self.query_E[example]))
        return draws.permutation(near)[: self._negatives] if near is not None else np.zeros(0, dtype=np.int64)


def _open(folder: Path, name: str, is_text: bool) -> Items:
    return open_tokens(folder, name) if is_text else open_array(folder, f"{name}.vectors")


def _has(folder: Path, name: str) -> bool:
    return (folder / f"{name}.npy").is_file()


def _near_misses(folder: Path) -> dict[int, Indices]:
    """The given near-misses of each query."""
    if not _has(folder, "train.negatives"):
        return {}
    found: dict[int, list[int]] = {}
    for query, passage in np.asarray(open_array(folder, "train.negatives")).tolist():
        found.setdefault(query, []).append(passage)
    return {query: np.array(passages, dtype=np.int64) for query, passages in found.items()}
