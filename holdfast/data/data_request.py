"""Which data to read, and what the user already decided about it."""

from dataclasses import dataclass
from pathlib import Path

from holdfast.core.facts import Task
from holdfast.core.settings import TrainRequest

DEFAULT_SHARE = 0.1  # of the rows, for validation and for testing


@dataclass(frozen=True, slots=True, kw_only=True)
class DataRequest:
    """A dataset and how to read it; None and empty mean that Holdfast decides."""

    path: Path
    validation: Path | None = None
    test: Path | None = None
    negatives: Path | None = None  # JSON lines of near-misses for two-tower
    task: Task | None = None
    text_columns: tuple[str, ...] = ()
    label_column: str | None = None
    group_column: str | None = None  # rows of one group stay in one split
    encoding: str | None = None
    delimiter: str | None = None
    header: bool | None = None
    multi_label: bool | None = None
    min_score: float | None = None  # pairs with at least this score are positives
    max_bad_share: float = 0.01  # more malformed rows than this are refused
    validation_share: float = DEFAULT_SHARE
    test_share: float = DEFAULT_SHARE
    folds: int = 0  # parts of the rows, of which one is for testing
    fold: int = 0  # which one, from 1
    seed: int = 42


def data_request(request: TrainRequest) -> DataRequest:
    """The part of a training request that is about its data."""
    task: Task | None = request.task  # type: ignore[assignment]  # one of the names that a request allows
    return DataRequest(
        path=Path(request.data),
        validation=Path(request.validation) if request.validation else None,
        test=Path(request.test) if request.test else None,
        negatives=Path(request.negatives) if request.negatives else None,
        task=task,
        text_columns=request.text_column,
        label_column=request.label_column,
        group_column=request.group_column,
        encoding=request.encoding,
        delimiter=request.delimiter,
        header=request.header,
        multi_label=request.multi_label,
        min_score=request.min_score,
        max_bad_share=request.max_bad_rows,
        validation_share=request.validation_share,
        test_share=request.test_share,
        folds=request.folds or 0,
        fold=request.fold or 1,
        seed=request.seed,
    )
