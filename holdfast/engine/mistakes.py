"""Finds the examples that a finished model gets wrong, and shows them as text."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from holdfast.data.shards import Texts, has_array, open_array, open_texts
from holdfast.data.tokenizer import ModelTokenizer
from holdfast.engine.calibration import probabilities

MAX_MISTAKES = 60
_LONGEST_CHARACTERS = 1200


class TextView:
    """Texts of a prepared folder: as they were in the file, or decoded from their tokens if that was not kept."""

    def __init__(self, folder: str | Path, prepared: Path):
        self._folder, self._prepared = folder, prepared
        self._tokenizer: Any = None
        self._kept: dict[str, Texts | None] = {}

    def text(self, name: str, at: int, tokens: NDArray[Any]) -> str:
        """The text at this index of a split or the corpus."""
        if name not in self._kept:
            self._kept[name] = open_texts(self._prepared, name)
        kept = self._kept[name]
        text = kept[at].strip() if kept is not None else self._decoded(tokens)
        return text if len(text) <= _LONGEST_CHARACTERS else text[:_LONGEST_CHARACTERS] + " ..."

    def _decoded(self, tokens: NDArray[Any]) -> str:
        if self._tokenizer is None:
            self._tokenizer = ModelTokenizer(Path(self._folder)).tokenizer
        return str(self._tokenizer.decode(tokens.tolist(), skip_special_tokens=True)).strip()


@dataclass(frozen=True, slots=True)
class WrongRow:
    """A row with wrong labels; labels are numbers here."""

    row: int
    expected: list[int]
    predicted: list[int]
    probabilities: dict[int, float]


def row_in_file(prepared: Path, split: str, row: int) -> int | None:
    """The row of an example in its file, if the prepared data has it."""
    name = f"{split}.rows"
    return int(open_array(prepared, name)[row]) if has_array(prepared, name) else None


def wrong_labels(scores: NDArray[np.float64], truth: NDArray[Any], is_multi: bool) -> Iterator[WrongRow]:
    """Rows with wrong labels, the most confident mistakes first."""
    chances = probabilities(scores, is_multi)
    if is_multi:
        expected, predicted = truth > 0.5, scores > 0
        confidence = np.where(predicted != expected, np.abs(chances - expected), 0).max(1)
    else:
        predicted = np.eye(scores.shape[1], dtype=bool)[scores.argmax(1)]
        expected = np.eye(scores.shape[1], dtype=bool)[truth]
        confidence = np.where((predicted != expected).any(1), chances.max(1), 0)
    for row in np.argsort(-confidence, kind="stable")[:MAX_MISTAKES]:
        if confidence[row] == 0:
            return
        either = np.flatnonzero(predicted[row] | expected[row]).tolist()
        yield WrongRow(
            row=int(row),
            expected=np.flatnonzero(expected[row]).tolist(),
            predicted=np.flatnonzero(predicted[row]).tolist(),
            probabilities={at: round(float(chances[row, at]), 4) for at in either},
        )


def missed_queries(
    found: NDArray[np.int64], judgements: Mapping[int, Mapping[int, int]]
) -> Iterator[tuple[int, int, int, int | None]]:
    """Query, its answer, the first result and the answer's rank (None if not found), the worst rank first."""
    missed = []
    for query, answers in judgements.items():
        ranks = np.flatnonzero(np.isin(found[query], list(answers)))
        if answers and (not len(ranks) or ranks[0] > 0):
            rank = int(ranks[0]) + 1 if len(ranks) else None
            answer = int(found[query][ranks[0]]) if len(ranks) else max(answers, key=lambda at: answers[at])
            missed.append((query, answer, int(found[query][0]), rank))
    missed.sort(key=lambda one: -(one[3] or len(found[0]) + 1))
    yield from missed[:MAX_MISTAKES]
