"""Metrics of classifiers, from scores and truth. numpy only."""

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def single_label_metrics(logits: Array, truth: NDArray[np.int64]) -> dict[str, float]:
    """Accuracy, macro and micro F1 and the loss of a classifier that gives each text one label."""
    guesses = logits.argmax(1)
    per_class = class_table(guesses, truth, logits.shape[1])
    shifted = logits - logits.max(1, keepdims=True)
    log_probabilities = shifted - np.log(np.exp(shifted).sum(1, keepdims=True))
    return {
        "accuracy": float((guesses == truth).mean()),
        "macro_f1": float(np.mean([row["f1"] for row in per_class if row["support"]])),
        "loss": float(-log_probabilities[np.arange(len(truth)), truth].mean()),
    }


def multi_label_metrics(logits: Array, truth: NDArray[np.float32]) -> dict[str, float]:
    """Micro and macro F1, exact matches and the loss of a classifier that gives each text any number of labels."""
    guesses, wanted = logits > 0, truth > 0.5
    hits, extra, missed = (guesses & wanted).sum(0), (guesses & ~wanted).sum(0), (~guesses & wanted).sum(0)
    per_class = [_f1(h, e, m) for h, e, m in zip(hits, extra, missed, strict=True)]
    loss = np.maximum(logits, 0) - logits * truth + np.log1p(np.exp(-np.abs(logits)))
    return {
        "micro_f1": _f1(hits.sum(), extra.sum(), missed.sum()),
        "macro_f1": float(np.mean(per_class)),
        "exact_match": float((guesses == wanted).all(1).mean()),
        "loss": float(loss.mean()),
    }


def class_table(guesses: NDArray[np.int64], truth: NDArray[np.int64], classes: int) -> list[dict[str, float]]:
    """Precision, recall, F1 and support of each class."""
    confusion = confusion_matrix(guesses, truth, classes)
    hits, guessed, wanted = confusion.diagonal(), confusion.sum(0), confusion.sum(1)
    return [
        {
            "precision": float(hits[c] / guessed[c]) if guessed[c] else 0.0,
            "recall": float(hits[c] / wanted[c]) if wanted[c] else 0.0,
            "f1": _f1(hits[c], guessed[c] - hits[c], wanted[c] - hits[c]),
            "support": int(wanted[c]),
        }
        for c in range(classes)
    ]


def confusion_matrix(guesses: NDArray[np.int64], truth: NDArray[np.int64], classes: int) -> NDArray[np.int64]:
    """Rows are the truth, columns the guesses."""
    return np.bincount(truth * classes + guesses, minlength=classes * classes).reshape(classes, classes)


def _f1(hits: float, extra: float, missed: float) -> float:
    return float(2 * hits / (2 * hits + extra + missed)) if hits else 0.0
