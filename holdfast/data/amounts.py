"""How much work is in a prepared folder: rows, tokens and the largest step, for forecasts."""

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from holdfast.core.prepared import Manifest
from holdfast.data.shards import has_array, open_array, open_lengths, require_manifest


@dataclass(frozen=True, slots=True, kw_only=True)
class Amounts:
    """The work in a prepared folder."""

    examples: int  # of the training split
    tokens: int  # of one epoch
    longest_tokens: int  # of one example
    largest_step_tokens: int  # of a step with the longest examples
    evaluation_tokens: int  # read at each evaluation
    report_tokens: int  # read for the report on the finished model
    largest_read_tokens: int  # of one token array that is read as a whole
    query_tokens: int = 0  # of a retriever's training queries
    corpus_tokens: int = 0  # of the passages it searches
    corpus_mean_tokens: float = 0.0  # of one of them
    near_miss_share: float = 0.0  # of the examples, that have a given near-miss


def amounts_of(prepared: Path, batch_size: int) -> Amounts:
    """Count the work in a prepared folder."""
    manifest = require_manifest(prepared)
    if manifest.task == "two-tower":
        return _of_towers(prepared, manifest, batch_size)
    tokens = _tokens_of_splits(prepared, manifest)
    validation, test = tokens["validation"], tokens["test"]
    return Amounts(
        **_of_examples(open_lengths(prepared, "train"), batch_size),
        evaluation_tokens=validation,
        report_tokens=validation + test,
        largest_read_tokens=max(validation, test),
    )


def _of_towers(prepared: Path, manifest: Manifest, batch_size: int) -> Amounts:
    """An example is a query with its passage; an evaluation reads the whole corpus."""
    corpus, queries = open_lengths(prepared, "corpus"), open_lengths(prepared, "train")
    qrels = np.asarray(open_array(prepared, "train.qrels"))
    tokens = _tokens_of_splits(prepared, manifest)
    validation, test = tokens["validation"], tokens["test"]
    corpus_tokens = int(corpus.sum())
    share = 0.0
    if has_array(prepared, "train.negatives"):
        has_one = np.unique(np.asarray(open_array(prepared, "train.negatives"))[:, 0])
        share = float(np.isin(qrels[:, 0], has_one).mean())
    return Amounts(
        **_of_examples(queries[qrels[:, 0]] + corpus[qrels[:, 1]], batch_size),
        evaluation_tokens=validation + corpus_tokens if "validation" in manifest.splits else 0,
        report_tokens=validation + test + corpus_tokens,  # one pass over the corpus serves both
        largest_read_tokens=max(validation, test, corpus_tokens),
        query_tokens=tokens["train"],
        corpus_tokens=corpus_tokens,
        corpus_mean_tokens=float(corpus.mean()),
        near_miss_share=share,
    )


def _tokens_of_splits(prepared: Path, manifest: Manifest) -> Counter[str]:
    return Counter({split: int(open_lengths(prepared, split).sum()) for split in manifest.splits})


def _of_examples(lengths: NDArray[Any], batch_size: int) -> dict[str, int]:
    return {
        "examples": len(lengths),
        "tokens": int(lengths.sum()),
        "longest_tokens": int(lengths.max(initial=0)),
        "largest_step_tokens": int(np.sort(lengths)[-batch_size:].sum()),
    }
