"""Finds rows whose label is probably wrong: those that disagree with predictions made without them.

The rows are divided into five parts. A linear classifier on words and pairs of words learns from four and predicts the
fifth, so no prediction has seen its own label. As in confident learning (Northcutt et al. 2021), a row is doubtful if
another class is predicted with at least the probability that is usual for rows of that class, and more probably than
its own label. The most doubtful come first. Numpy only; a row costs about a tenth of a millisecond and 500 bytes.
"""

import csv
import math
import zlib
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from holdfast.core.data_warnings import DataWarning, data_warning
from holdfast.core.errors import RequestError, install, leave_out
from holdfast.core.facts import DatasetFacts
from holdfast.core.progress import Progress, no_progress
from holdfast.data.badrows import BadRows
from holdfast.data.examples import exact_hash
from holdfast.data.sources import Source
from holdfast.data.sources.rows import RowSource
from holdfast.data.split import draw

_FOLDS = 5
_MOST_ROWS = 200_000
_WORDS = 300  # of a text that are read
_WEIGHTS = 1 << 24  # at most, of all features and classes
_FEWEST_BATCHES = 50  # of an epoch, except for very few rows
_EPOCHS, _BATCH_ROWS, _STEP, _DECAY = 16, 512, 0.5, 1e-6
_FEWEST_ROWS = 20
_SHOWN_CHARACTERS = 300
_EXAMPLES = 3
_EVERY_ROWS = 5000


@dataclass(frozen=True, slots=True)
class DoubtfulLabel:
    """A row whose label is probably wrong."""

    file: str
    row: int
    label: str
    predicted: str
    label_probability: float
    predicted_probability: float
    text: str


@dataclass(frozen=True, slots=True)
class LabelCheck:
    """The doubtful rows, the most doubtful first."""

    checked: int
    doubtful: tuple[DoubtfulLabel, ...]

    def warnings(self, path: Path) -> tuple[DataWarning, ...]:
        """What the owner of the data should know, once the rows are in a file."""
        if not self.doubtful:
            return ()
        share = len(self.doubtful) / self.checked
        such = tuple(
            f"{one.file}, row {one.row}: {one.label}, not {one.predicted}?" for one in self.doubtful[:_EXAMPLES]
        )
        rows = {"rows": len(self.doubtful), "checked": self.checked}
        return (data_warning("doubtful-labels", **rows, share=share, examples=such, file=path.name),)

    def write(self, path: Path) -> None:
        """Write the doubtful rows as a table."""
        with path.open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(("file", "row", "label", "predicted", "label_probability", "predicted_probability", "text"))
            for one in self.doubtful:
                chances = f"{one.label_probability:.4f}", f"{one.predicted_probability:.4f}"
                writer.writerow((one.file, one.row, one.label, one.predicted, *chances, one.text))


def check_labels(source: Source, on_progress: Progress = no_progress) -> LabelCheck:
    """Compare the label of every row with a prediction that has not seen it."""
    layout = source.layout
    if not isinstance(source, RowSource) or layout.labels is None or layout.labels.is_multi:
        raise RequestError(
            "labels can be checked only if each text has exactly one",
            found=f"{layout.task}, {layout.form}",
            try_next=(leave_out("check_labels"),),
            setting="check_labels",
        )
    try:
        import numpy
    except ImportError as error:
        raise RequestError(
            "checking labels needs an extra that is not installed", found=str(error), try_next=(install("train"),)
        ) from error
    rows = _Rows(source, on_progress)
    if len(rows.labels) < _FEWEST_ROWS:
        return LabelCheck(checked=len(rows.labels), doubtful=())
    chances = _out_of_fold(numpy, rows, on_progress)
    truth = numpy.asarray(rows.labels)
    own = chances[numpy.arange(len(truth)), truth]
    counts = numpy.maximum(numpy.bincount(truth, minlength=len(rows.names)), 1)
    usual = numpy.bincount(truth, own, len(rows.names)) / counts
    fitting = numpy.where(chances >= usual, chances, 0.0)
    fitting[numpy.arange(len(truth)), truth] = 0.0
    others = fitting.argmax(1)
    margins = fitting.max(1) - own
    found = numpy.flatnonzero(margins > 0)
    found = found[numpy.argsort(-margins[found], kind="stable")]
    wanted = {int(at): (rows.names[others[at]], float(own[at]), float(fitting[at].max())) for at in found}
    texts = {at: (path, row, label, text) for at, path, row, label, text in _examples(source) if at in wanted}
    doubtful = (_doubtful(*texts[at], *wanted[at]) for at in wanted)
    return LabelCheck(checked=len(truth), doubtful=tuple(doubtful))


def checked_facts(source: Source, facts: DatasetFacts, path: Path, on_progress: Progress = no_progress) -> DatasetFacts:
    """The facts of a dataset with a warning about its doubtful labels, which are written to a file."""
    check = check_labels(source, on_progress)
    check.write(path)
    return replace(facts, warnings=(*facts.warnings, *check.warnings(path)))


def _doubtful(path: Path, row: int, label: str, text: str, other: str, own: float, chance: float) -> DoubtfulLabel:
    return DoubtfulLabel(path.name, row, label, other, own, chance, text[:_SHOWN_CHARACTERS])


def _examples(source: RowSource) -> Iterator[tuple[int, Path, int, str, str]]:
    """The first rows as (number, file, row, label, text)."""
    found = (one for one in source.examples(BadRows(1.0)) if one is not None)
    for number, one in zip(range(_MOST_ROWS), found, strict=False):
        yield number, one.path, one.row, one.example.labels[0], one.example.parts[0][1]


class _Rows:
    """The hashed words and pairs of words of every row, with its label and its fold."""

    def __init__(self, source: RowSource, on_progress: Progress):
        self.features, self.starts = array("I"), array("q", (0,))
        self.labels, self.folds = array("i"), bytearray()
        numbers: dict[str, int] = {}
        for number, _, _, label, text in _examples(source):
            words = [zlib.crc32(word.encode()) for word in text.lower().split()[:_WORDS]]
            self.features.extend(words)
            self.features.extend((one * 31 + other) & 0xFFFFFFFF for one, other in pairwise(words))
            self.starts.append(len(self.features))
            self.labels.append(numbers.setdefault(label, len(numbers)))
            # Copies of a text are in one fold, or each would vouch for the other.
            self.folds.append(int(draw(exact_hash(" ".join(text.lower().split())), 0) * _FOLDS))
            if number % _EVERY_ROWS == 0:
                on_progress("reading labels", number, source.row_count)
        self.names = tuple(numbers)


def _out_of_fold(np: Any, rows: _Rows, on_progress: Progress) -> Any:
    """The probability of each class for each row, from a classifier that has not seen its fold."""
    classes = len(rows.names)
    size = 1 << max(12, min(18, int(math.log2(_WEIGHTS / classes))))
    features = (np.asarray(rows.features, np.uint64) * np.uint64(0x9E3779B1) >> np.uint64(7)).astype(np.int64) % size
    starts, folds = np.asarray(rows.starts), np.frombuffer(rows.folds, np.uint8)
    rarity = np.log(len(folds) / np.maximum(1, np.bincount(features, minlength=size))).clip(0.1).astype(np.float32)
    chances = np.zeros((len(folds), classes), np.float32)
    truth = np.asarray(rows.labels)
    batch = max(16, min(_BATCH_ROWS, len(folds) // _FEWEST_BATCHES))
    for fold in range(_FOLDS):
        rng = np.random.default_rng(fold)
        weights = np.zeros((size, classes), np.float32)
        bias = np.log(np.bincount(truth[folds != fold], minlength=classes) + 1.0).astype(np.float32)
        squares = np.full(size, 1e-8, np.float32)
        learned = np.flatnonzero(folds != fold)
        for epoch in range(_EPOCHS):
            rng.shuffle(learned)
            for first in range(0, len(learned), batch):
                some = learned[first : first + batch]
                owner, found, values = _batch(np, features, starts, rarity, some)
                errors = _probabilities(np, weights, bias, owner, found, values, len(some))
                errors[np.arange(len(some)), truth[some]] -= 1
                order = np.argsort(found, kind="stable")
                used, at = np.unique(found[order], return_index=True)
                gradient = np.add.reduceat((values[:, None] * errors[owner])[order], at, axis=0)
                squares[used] += (gradient**2).mean(1)
                weights[used] -= _STEP / np.sqrt(squares[used])[:, None] * (gradient + _DECAY * weights[used])
            on_progress("checking labels", fold * _EPOCHS + epoch + 1, _FOLDS * _EPOCHS)
        held = np.flatnonzero(folds == fold)
        for first in range(0, len(held), _BATCH_ROWS):
            some = held[first : first + _BATCH_ROWS]
            owner, found, values = _batch(np, features, starts, rarity, some)
            chances[some] = _probabilities(np, weights, bias, owner, found, values, len(some))
    return chances


def _batch(np: Any, features: Any, starts: Any, rarity: Any, rows: Any) -> tuple[Any, Any, Any]:
    """The features of some rows: the place of the row of each, the feature, and its value (TF-IDF, of length 1)."""
    counts = starts[rows + 1] - starts[rows]
    owner = np.repeat(np.arange(len(rows)), counts)
    places = np.repeat(starts[rows] - (np.cumsum(counts) - counts), counts) + np.arange(int(counts.sum()))
    found = features[places]
    values = rarity[found]
    lengths = np.sqrt(np.bincount(owner, values**2, len(rows))).astype(np.float32)
    return owner, found, values / np.maximum(lengths, 1e-6)[owner]


def _probabilities(np: Any, weights: Any, bias: Any, owner: Any, found: Any, values: Any, rows: int) -> Any:
    scores = np.zeros((rows, weights.shape[1]), np.float32)
    np.add.at(scores, owner, weights[found] * values[:, None])
    scores += bias
    scores = np.exp(scores - scores.max(1, keepdims=True))
    return scores / scores.sum(1, keepdims=True)
