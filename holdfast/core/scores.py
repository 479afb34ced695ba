"""The metrics of a model: the file that holds them, which one decides, and how a value is written."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec

from holdfast.core.artifacts import read_artifact, write_artifact
from holdfast.core.runfolder import METRICS

Split = Literal["validation", "test"]
SPLITS: tuple[Split, ...] = ("validation", "test")

# Most important first. A task's own deciding metric comes before everything else that the task reports.
ORDER = (
    *("accuracy", "micro_f1", "macro_f1", "exact_match"),
    *("ndcg@10", "recall@10", "mrr@10", "recall@1", "recall@5", "map@100"),
    *("perplexity", "loss"),
)
_SHARES = frozenset(ORDER) - {"perplexity", "loss"} | {"calibration_error", "calibrated_error"}  # between 0 and 1
_HIDDEN = frozenset({"negative_loss"})  # what the engine maximizes for a language model; its loss says the same
_LAST = ("calibration_error", "calibrated_error")
_NAMES = {
    "ndcg@10": "nDCG@10",
    "mrr@10": "MRR@10",
    "map@100": "MAP@100",
    "micro_f1": "micro F1",
    "macro_f1": "macro F1",
    "calibration_error": "calibration error before calibration",
    "calibrated_error": "calibration error after calibration",
}


class LabelScores(msgspec.Struct, frozen=True, kw_only=True):
    """How well one label is predicted."""

    label: str
    precision: float
    recall: float
    f1: float
    support: int  # texts with this label


class SampleAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What a language model answers to a prompt, next to the expected answer."""

    prompt: str
    answer: str
    wanted: str


class SplitMetrics(msgspec.Struct, frozen=True, kw_only=True):
    """What was measured on one split."""

    scores: Mapping[str, float]
    classes: tuple[LabelScores, ...] = ()  # classify, in the order of the labels' numbers
    confusion: tuple[tuple[int, ...], ...] = ()  # classify, one label per text: rows are labels, columns predictions
    samples: tuple[SampleAnswer, ...] = ()  # causal
    spread: Mapping[str, float] = {}  # standard deviation of the scores over folds, whose mean they are
    folds: int = 0
    intervals: Mapping[str, tuple[float, float]] = {}  # 95% confidence intervals of the scores


class ModelMetrics(msgspec.Struct, frozen=True, kw_only=True):
    """The metrics of a finished model."""

    step: int = 0  # whose weights were kept
    steps: int = 0
    splits: Mapping[Split, SplitMetrics] = {}

    @property
    def scores(self) -> dict[str, Mapping[str, float]]:
        """The numbers alone, by split."""
        return {split: one.scores for split, one in self.splits.items()}


_TABLES: Mapping[str, Any] = {
    "classes": tuple[LabelScores, ...],
    "confusion": tuple[tuple[int, ...], ...],
    "samples": tuple[SampleAnswer, ...],
    "spread": dict[str, float],
    "folds": int,
    "intervals": dict[str, tuple[float, float]],
}


def write_metrics(run: Path, metrics: ModelMetrics) -> None:
    """Write metrics.json: each split holds its scores by name, next to its tables."""
    splits: dict[str, object] = {
        name: {**one.scores, **{table: found for table in _TABLES if (found := getattr(one, table))}}
        for name, one in metrics.splits.items()
    }
    write_artifact(run, METRICS, {"step": metrics.step, "steps": metrics.steps, **splits})


def read_metrics(run: Path) -> ModelMetrics:
    """The metrics of a run's model; without a split where the file is missing or damaged."""
    plain = read_artifact(run / METRICS)
    splits: dict[Split, SplitMetrics] = {
        name: split_metrics(found) for name in SPLITS if isinstance(found := plain.get(name), dict)
    }
    step, steps = (value if isinstance(value := plain.get(name), int) else 0 for name in ("step", "steps"))
    return ModelMetrics(step=step, steps=steps, splits=splits)


def split_metrics(plain: Mapping[str, Any]) -> SplitMetrics:
    """The metrics of a split as its task reports them: scores by name, next to tables. A damaged table is left out."""
    tables = {name: _table(plain[name], kind) for name, kind in _TABLES.items() if name in plain}
    return SplitMetrics(scores=ordered_scores(plain), **{name: one for name, one in tables.items() if one})


def _table(plain: object, kind: Any) -> Any:
    try:
        return msgspec.convert(plain, kind)
    except msgspec.ValidationError:
        return ()


def ordered_scores(metrics: Mapping[str, object]) -> dict[str, float]:
    """The numbers among the metrics, the most important first."""
    found = {
        name: float(value)
        for name, value in metrics.items()
        if isinstance(value, int | float) and not isinstance(value, bool) and name not in (*_HIDDEN, *_TABLES)
    }
    others = [name for name in found if name not in _LAST]
    return {name: found[name] for name in (*ORDER, *others, *_LAST) if name in found}


def shown_scores(metrics: Mapping[str, object]) -> dict[str, float]:
    """The same without micro F1 where it only repeats the accuracy, as where each text has one label."""
    scores = ordered_scores(metrics)
    return {name: value for name, value in scores.items() if not (name == "micro_f1" and "accuracy" in scores)}


def deciding_score(metrics: Mapping[str, object]) -> tuple[str, float] | None:
    """The metric by which models are compared; None if there is no known one."""
    return next(((name, value) for name, value in ordered_scores(metrics).items() if name in ORDER), None)


def final_score(splits: Mapping[str, object]) -> tuple[str, str, float] | None:
    """Split, metric and value that rate a finished model, on the test split if there is one."""
    for split in reversed(SPLITS):
        metrics = splits.get(split)
        if isinstance(metrics, Mapping) and (found := deciding_score(metrics)):
            return (split, *found)
    return None


def is_share(name: str) -> bool:
    """Whether a metric is between 0 and 1."""
    return name in _SHARES


def metric_name(name: str) -> str:
    """A metric's name as people write it."""
    return _NAMES.get(name, name.replace("_", " "))


def interval_value(name: str, interval: tuple[float, float]) -> str:
    """An interval as text: "96.1 to 98.9%"."""
    if is_share(name):
        return f"{100 * interval[0]:.1f} to {100 * interval[1]:.1f}%"
    return f"{interval[0]:.4g} to {interval[1]:.4g}"


def metric_value(name: str, value: float) -> str:
    """A metric's value as text: a percentage if it is a share."""
    if not is_share(name):
        return f"{value:.4g}"
    return "100%" if value == 1 else f"{value:.1%}"
