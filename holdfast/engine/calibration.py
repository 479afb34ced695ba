"""Calibrates a classifier's probabilities with one temperature, fitted on validation texts.

Dividing all scores by it changes no decision between labels, only the confidence. numpy only.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from holdfast.core.artifacts import write_artifact
from holdfast.engine.metrics import multi_label_loss, single_label_loss

Array = NDArray[np.float64]

_FILE = "calibration.json"
_BINS = 15
_HOTTEST = 20.0


class Calibration(msgspec.Struct, frozen=True, kw_only=True):
    """The temperature and what it did to the texts it was fitted on."""

    temperature: float
    loss_before: float
    loss_after: float
    error_before: float
    error_after: float


def write_calibration(folder: Path, calibration: Calibration) -> None:
    """Write it into a model's folder."""
    write_artifact(folder, _FILE, calibration)


def read_calibration(folder: Path) -> Calibration | None:
    """The calibration of a model; None for a model without one."""
    file = folder / _FILE
    return msgspec.json.decode(file.read_bytes(), type=Calibration) if file.is_file() else None


def fit(logits: Array, truth: NDArray[Any], is_multi: bool) -> Calibration:
    """Find the temperature that makes the true labels most likely."""
    temperature = float(np.exp(_minimum(lambda log: _loss(logits / np.exp(log), truth, is_multi), np.log(_HOTTEST))))
    return Calibration(
        temperature=temperature,
        loss_before=_loss(logits, truth, is_multi),
        loss_after=_loss(logits / temperature, truth, is_multi),
        error_before=calibration_error(logits, truth, is_multi),
        error_after=calibration_error(logits / temperature, truth, is_multi),
    )


def calibration_error(logits: Array, truth: NDArray[Any], is_multi: bool) -> float:
    """Expected calibration error: the mean gap between predicted probability and accuracy."""
    if is_multi:
        confidence, right = probabilities(logits, True).ravel(), np.asarray(truth).ravel() > 0.5
    else:
        chances = probabilities(logits, False)
        confidence, right = chances.max(1), chances.argmax(1) == truth
    bins = np.minimum((confidence * _BINS).astype(int), _BINS - 1)
    within = [bins == at for at in np.unique(bins)]
    return float(sum(abs(confidence[here].mean() - right[here].mean()) * here.mean() for here in within))


def probabilities(logits: Array, is_multi: bool) -> Array:
    """Scores as probabilities: sigmoid for independent labels, softmax for one label of many."""
    if is_multi:
        chances: Array = 1 / (1 + np.exp(-logits))
        return chances
    powers = np.exp(logits - logits.max(1, keepdims=True))
    shares: Array = powers / powers.sum(1, keepdims=True)
    return shares


def _loss(logits: Array, truth: NDArray[Any], is_multi: bool) -> float:
    return multi_label_loss(logits, truth) if is_multi else single_label_loss(logits, truth)


def _minimum(loss: Callable[[float], float], furthest: float) -> float:
    """Golden-section search from -furthest to furthest; the loss has a single minimum."""
    low, high = -furthest, furthest
    golden = (np.sqrt(5) - 1) / 2
    for _ in range(60):
        left, right = high - golden * (high - low), low + golden * (high - low)
        if loss(left) < loss(right):
            high = right
        else:
            low = left
    return float((low + high) / 2)
