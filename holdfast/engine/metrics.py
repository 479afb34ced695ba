"""Metrics of classifiers, from scores and truth. numpy only."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def single_label_metrics(logits: Array, truth: NDArray[np.int64]) -> dict[str, float]:
    """Accuracy, macro and micro F1 and loss of a classifier with one label per text."""
    predicted = logits.argmax(1)
    per_class = class_table(predicted, truth, logits.shape[1])
    accuracy = float((predicted == truth).mean())
    return {
        "accuracy": accuracy,
        "macro_f1": float(np.mean([row["f1"] for row in per_class if row["support"]])),
        "micro_f1": accuracy,  # equal to accuracy if each text has one label
        "loss": single_label_loss(logits, truth),
    }


def multi_label_metrics(logits: Array, truth: NDArray[np.float32]) -> dict[str, float]:
    """Micro and macro F1, exact matches and loss of a classifier with any number of labels per text."""
    predicted, expected = logits > 0, truth > 0.5
    hits, extra, missed = (predicted & expected).sum(0), (predicted & ~expected).sum(0), (~predicted & expected).sum(0)
    return {
        "micro_f1": _f1(hits.sum(), extra.sum(), missed.sum()),
        "macro_f1": float(np.mean([row["f1"] for row in label_table(predicted, expected)])),
        "exact_match": float((predicted == expected).all(1).mean()),
        "loss": multi_label_loss(logits, truth),
    }


def single_label_loss(logits: Array, truth: NDArray[Any]) -> float:
    """Mean cross-entropy of the true labels, in nats."""
    return float(row_losses(logits, truth, False).mean())


def multi_label_loss(logits: Array, truth: NDArray[Any]) -> float:
    """Mean binary cross-entropy over all labels."""
    return float(row_losses(logits, truth, True).mean())


def row_losses(logits: Array, truth: NDArray[Any], is_multi: bool) -> Array:
    """The loss of each text."""
    if is_multi:
        losses = np.maximum(logits, 0) - logits * truth + np.log1p(np.exp(-np.abs(logits)))
        mean: Array = losses.mean(1)
        return mean
    shifted = logits - logits.max(1, keepdims=True)
    log_probabilities = shifted - np.log(np.exp(shifted).sum(1, keepdims=True))
    found: Array = -log_probabilities[np.arange(len(truth)), truth]
    return found


def class_table(predicted: NDArray[np.int64], truth: NDArray[np.int64], classes: int) -> list[dict[str, float]]:
    """Precision, recall, F1 and support of each class."""
    confusion = confusion_matrix(predicted, truth, classes)
    hits, predicted, expected = confusion.diagonal(), confusion.sum(0), confusion.sum(1)
    return [_row(hits[c], predicted[c], expected[c]) for c in range(classes)]


def label_table(predicted: NDArray[np.bool_], expected: NDArray[np.bool_]) -> list[dict[str, float]]:
    """Precision, recall, F1 and support of each label, for texts with any number of labels."""
    hits = (predicted & expected).sum(0)
    return [_row(*counts) for counts in zip(hits, predicted.sum(0), expected.sum(0), strict=True)]


def confusion_matrix(predicted: NDArray[np.int64], truth: NDArray[np.int64], classes: int) -> NDArray[np.int64]:
    """The confusion matrix: rows are true labels, columns predicted ones."""
    return np.bincount(truth * classes + predicted, minlength=classes * classes).reshape(classes, classes)


def _row(hits: float, predicted: float, expected: float) -> dict[str, float]:
    return {
        "precision": float(hits / predicted) if predicted else 0.0,
        "recall": float(hits / expected) if expected else 0.0,
        "f1": _f1(hits, predicted - hits, expected - hits),
        "support": int(expected),
    }


def _f1(hits: float, extra: float, missed: float) -> float:
    return float(2 * hits / (2 * hits + extra + missed)) if hits else 0.0
