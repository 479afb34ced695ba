"""Metrics of classifiers, from scores and truth. numpy only."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def single_label_metrics(logits: Array, truth: NDArray[np.int64]) -> dict[str, float]:
    """Accuracy, macro and micro F1 and the loss of a classifier that gives each text one label."""
    guesses = logits.argmax(1)
    per_class = class_table(guesses, truth, logits.shape[1])
    accuracy = float((guesses == truth).mean())
    return {
        "accuracy": accuracy,
        "macro_f1": float(np.mean([row["f1"] for row in per_class if row["support"]])),
        "micro_f1": accuracy,  # the same where each text has one label
        "loss": single_label_loss(logits, truth),
    }


def multi_label_metrics(logits: Array, truth: NDArray[np.float32]) -> dict[str, float]:
    """Micro and macro F1, exact matches and the loss of a classifier that gives each text any number of labels."""
    guesses, wanted = logits > 0, truth > 0.5
    hits, extra, missed = (guesses & wanted).sum(0), (guesses & ~wanted).sum(0), (~guesses & wanted).sum(0)
    return {
        "micro_f1": _f1(hits.sum(), extra.sum(), missed.sum()),
        "macro_f1": float(np.mean([row["f1"] for row in label_table(guesses, wanted)])),
        "exact_match": float((guesses == wanted).all(1).mean()),
        "loss": multi_label_loss(logits, truth),
    }


def single_label_loss(logits: Array, truth: NDArray[Any]) -> float:
    """Mean of what the model thought unlikely about the truth, in nats."""
    shifted = logits - logits.max(1, keepdims=True)
    log_probabilities = shifted - np.log(np.exp(shifted).sum(1, keepdims=True))
    return float(-log_probabilities[np.arange(len(truth)), truth].mean())


def multi_label_loss(logits: Array, truth: NDArray[Any]) -> float:
    """The same, label by label."""
    loss = np.maximum(logits, 0) - logits * truth + np.log1p(np.exp(-np.abs(logits)))
    return float(loss.mean())


def class_table(guesses: NDArray[np.int64], truth: NDArray[np.int64], classes: int) -> list[dict[str, float]]:
    """Precision, recall, F1 and support of each class."""
    confusion = confusion_matrix(guesses, truth, classes)
    hits, guessed, wanted = confusion.diagonal(), confusion.sum(0), confusion.sum(1)
    return [_row(hits[c], guessed[c], wanted[c]) for c in range(classes)]


def label_table(guesses: NDArray[np.bool_], wanted: NDArray[np.bool_]) -> list[dict[str, float]]:
    """The same for texts with any number of labels."""
    hits = (guesses & wanted).sum(0)
    return [_row(*counts) for counts in zip(hits, guesses.sum(0), wanted.sum(0), strict=True)]


def confusion_matrix(guesses: NDArray[np.int64], truth: NDArray[np.int64], classes: int) -> NDArray[np.int64]:
    """Rows are the truth, columns the guesses."""
    return np.bincount(truth * classes + guesses, minlength=classes * classes).reshape(classes, classes)


def _row(hits: float, guessed: float, wanted: float) -> dict[str, float]:
    return {
        "precision": float(hits / guessed) if guessed else 0.0,
        "recall": float(hits / wanted) if wanted else 0.0,
        "f1": _f1(hits, guessed - hits, wanted - hits),
        "support": int(wanted),
    }


def _f1(hits: float, extra: float, missed: float) -> float:
    return float(2 * hits / (2 * hits + extra + missed)) if hits else 0.0
