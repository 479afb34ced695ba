"""What was asked of the data: which files, and what the user already decided about them."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Task = Literal["classify", "causal", "two-tower"]
TASKS: tuple[Task, ...] = ("classify", "causal", "two-tower")

# Called with what is being done, how much of it is done and the whole, where that is known.
Progress = Callable[[str, int, int | None], None]


def no_progress(what: str, done: int, whole: int | None) -> None:
    """Show nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DataRequest:
    """A dataset and how to read it; None and empty mean: find out."""

    path: Path
    validation: Path | None = None
    test: Path | None = None
    negatives: Path | None = None  # JSON lines of near-misses, for two-tower
    task: Task | None = None
    text_columns: tuple[str, ...] = ()
    label_column: str | None = None
    group_column: str | None = None  # rows of one group stay in one split
    encoding: str | None = None
    delimiter: str | None = None
    header: bool | None = None
    multi_label: bool | None = None
    min_score: float | None = None  # scored pairs from here on are positives
    max_bad_share: float = 0.01  # more bad rows than this are refused
    validation_share: float = 0.1
    test_share: float = 0.1
    seed: int = 42
