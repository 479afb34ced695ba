"""The metrics of a model: which one decides, what people call it, and how its value is written."""

from collections.abc import Mapping

# Most important first. A task's own deciding metric comes before everything else that the task reports.
ORDER = (
    *("accuracy", "micro_f1", "macro_f1", "exact_match"),
    *("ndcg@10", "recall@10", "mrr@10", "recall@1", "recall@5", "map@100"),
    *("perplexity", "loss"),
)
_SHARES = frozenset(ORDER) - {"perplexity", "loss"} | {"calibration_error", "calibrated_error"}  # between 0 and 1
_HIDDEN = frozenset({"negative_loss"})  # what the engine maximizes for a language model; its loss says the same
_NAMES = {
    "ndcg@10": "nDCG@10",
    "mrr@10": "MRR@10",
    "map@100": "MAP@100",
    "micro_f1": "micro F1",
    "macro_f1": "macro F1",
    "calibration_error": "calibration error before calibration",
    "calibrated_error": "calibration error after calibration",
}


def ordered_scores(metrics: Mapping[str, object]) -> dict[str, float]:
    """The numbers among the metrics, the most important first."""
    found = {
        name: float(value)
        for name, value in metrics.items()
        if isinstance(value, int | float) and not isinstance(value, bool) and name not in _HIDDEN
    }
    return {name: found[name] for name in (*(name for name in ORDER if name in found), *found)}


def deciding_score(metrics: Mapping[str, object]) -> tuple[str, float] | None:
    """The metric by which models are compared; None if there is no known one."""
    return next(((name, value) for name, value in ordered_scores(metrics).items() if name in ORDER), None)


def final_score(splits: Mapping[str, object]) -> tuple[str, str, float] | None:
    """Split, metric and value that rate a finished model, on the test split if there is one."""
    for split in ("test", "validation"):
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


def metric_value(name: str, value: float) -> str:
    """A metric's value as text: a percentage if it is a share."""
    if not is_share(name):
        return f"{value:.4g}"
    return "100%" if value == 1 else f"{value:.1%}"
