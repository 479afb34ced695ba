"""Prepares vectors that were made before, for light towers over them."""

from array import array
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from holdfast.core.plan import Choice
from holdfast.data.request import Progress
from holdfast.data.shards import ArrayWriter, write_array
from holdfast.data.split import SPLITS
from holdfast.data.survey_vectors import VectorSurvey, slices
from holdfast.data.tower_writer import Indices, add_near_misses, numbered, write_table


def prepare_vectors(survey: VectorSurvey, folder: Path, on_progress: Progress) -> dict[str, Any]:
    """Vectors that were made before: the passages as the corpus, the queries of each split."""
    usable = np.frombuffer(survey.usable, dtype=np.uint8).astype(bool)
    splits = np.frombuffer(survey.splits, dtype=np.uint8)
    numbers = np.cumsum(usable) - 1  # of each row among those that can be used
    corpus: ArrayWriter | None = None
    for at, vectors in slices(survey.path, survey.passages):
        corpus = corpus or ArrayWriter(folder / "corpus.vectors.npy", np.float32, vectors.shape[1])
        corpus.add(vectors[usable[at : at + len(vectors)]])
        on_progress("writing passages", at + len(vectors), len(usable))
    writers: dict[int, ArrayWriter] = {}
    for at, vectors in slices(survey.path, survey.queries):
        for code, name in enumerate(SPLITS):
            here = usable[at : at + len(vectors)] & (splits[at : at + len(vectors)] == code)
            if code not in writers:
                writers[code] = ArrayWriter(folder / f"{name}.vectors.npy", np.float32, vectors.shape[1])
            writers[code].add(vectors[here])
        on_progress("writing queries", at + len(vectors), len(usable))
    assert corpus is not None
    corpus.close()
    counts = {}
    for code, writer in writers.items():
        count = writer.close()
        name = SPLITS[code]
        if not count:
            (folder / f"{name}.vectors.npy").unlink()
            continue
        rows = np.flatnonzero(usable & (splits == code))
        qrels = np.stack((np.arange(count), numbers[rows], np.ones(count, dtype=np.int64)), axis=1)
        write_array(folder, f"{name}.qrels", qrels, np.int64)
        write_array(folder, f"{name}.rows", rows + 1, np.int64)
        counts[name] = {"rows": count, "tokens": 0}
    if survey.groups:
        write_array(folder, "corpus.groups", np.asarray(numbered(survey.groups))[usable], np.int64)
    choices = _near_misses(survey, folder, usable & (splits == 0), numbers)
    return {"form": "vectors", "splits": counts, "choices": choices}


def _near_misses(
    survey: VectorSurvey, folder: Path, is_train: NDArray[np.bool_], numbers: Indices
) -> dict[str, Choice[str]]:
    """Near-misses of vectors are given by row, counted from 0 as numpy does."""
    places = np.cumsum(is_train) - 1

    def row_of(text: str) -> int | None:
        return int(text) if text.isdecimal() and int(text) < len(numbers) else None

    def find_query(text: str) -> int | None:
        row = row_of(text)
        return None if row is None or not is_train[row] else int(places[row])

    def find_passage(text: str) -> int | None:
        row = row_of(text)
        return None if row is None or not survey.usable[row] else int(numbers[row])

    pairs = array("q")
    choices = add_near_misses(survey.request, find_query, find_passage, pairs)
    if pairs:
        write_table(folder, "train.negatives", pairs, 2)
    return choices
