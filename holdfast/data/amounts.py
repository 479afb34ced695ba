"""How much work a prepared folder holds: rows, tokens and the largest step, for forecasts."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from holdfast.core.runfolder import MANIFEST
from holdfast.data.shards import open_array, open_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Amounts:
    """The work in a prepared folder."""

    examples: int  # of the training split
    tokens: int  # of one epoch
    longest_tokens: int  # of one example
    largest_step_tokens: int  # of a step with the longest examples
    evaluation_tokens: int  # read at each evaluation
    report_tokens: int  # read when the finished model is looked at

    @property
    def mean_tokens(self) -> float:
        """Tokens of an example."""
        return self.tokens / max(1, self.examples)


def amounts_of(prepared: Path, batch_size: int) -> Amounts:
    """Count the work in a prepared folder."""
    manifest = json.loads((prepared / MANIFEST).read_text(encoding="utf-8"))
    if manifest["task"] == "two-tower":
        lengths, read = _of_towers(prepared, manifest)
    else:
        lengths = open_tokens(prepared, "train").lengths
        read = {split: int(open_tokens(prepared, split).lengths.sum()) for split in manifest["splits"]}
    validation, test = read.get("validation", 0), read.get("test", 0)
    most = np.sort(lengths)[-batch_size:]
    return Amounts(
        examples=len(lengths),
        tokens=int(lengths.sum()),
        longest_tokens=int(lengths.max(initial=0)),
        largest_step_tokens=int(most.sum()),
        evaluation_tokens=validation,
        report_tokens=validation + test,
    )


def _of_towers(prepared: Path, manifest: dict[str, Any]) -> tuple[NDArray[Any], dict[str, int]]:
    """An example is a query with its passage; an evaluation reads the whole corpus."""

    def sizes(name: str) -> NDArray[Any]:
        if manifest["form"] == "text":
            return open_tokens(prepared, name).lengths
        return np.ones(len(open_array(prepared, f"{name}.vectors")), dtype=np.int64)

    corpus = sizes("corpus")
    qrels = np.asarray(open_array(prepared, "train.qrels"))
    lengths = sizes("train")[qrels[:, 0]] + corpus[qrels[:, 1]]
    return lengths, {split: int(sizes(split).sum() + corpus.sum()) for split in manifest["splits"]}
