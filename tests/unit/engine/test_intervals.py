"""Intervals of metrics: they contain the truth as often as they say, and are the same each time."""

import numpy as np
import pytest

from holdfast.engine.intervals import classifier_intervals, loss_intervals, mean_intervals
from holdfast.engine.metrics import multi_label_metrics, single_label_metrics


def single(rows: int, seed: int, share: float = 0.8):
    rng = np.random.default_rng(seed)
    truth = rng.integers(0, 3, rows)
    said = np.where(rng.random(rows) < share, truth, (truth + 1) % 3)
    return np.eye(3)[said] * 4 + rng.normal(0, 0.1, (rows, 3)), truth


def test_accuracy_is_inside_about_95_times_of_100():
    inside = 0
    for seed in range(200):
        low, high = classifier_intervals(*single(200, seed), False, seed)["accuracy"]
        inside += low <= 0.8 <= high
    assert 180 <= inside <= 199


def test_width_is_that_of_a_binomial():
    low, high = classifier_intervals(*single(2000, 1), False, 1)["accuracy"]
    assert high - low == pytest.approx(2 * 1.96 * (0.8 * 0.2 / 2000) ** 0.5, rel=0.15)


@pytest.mark.parametrize("is_multi", [False, True])
def test_every_metric_has_one_around_its_value(is_multi):
    scores, truth = single(300, 2)
    if is_multi:
        truth = (np.eye(3)[truth]).astype(np.float32)
        scores -= 2
    measured = (multi_label_metrics if is_multi else single_label_metrics)(scores, truth)
    found = classifier_intervals(scores, truth, is_multi, 7)
    assert found.keys() == measured.keys()
    assert all(low <= measured[name] <= high for name, (low, high) in found.items())
    assert found == classifier_intervals(scores, truth, is_multi, 7)


def test_classes_that_a_split_lacks_do_not_count():
    scores, truth = single(300, 3, 1.0)
    low, high = classifier_intervals(np.pad(scores, ((0, 0), (0, 2)), constant_values=-9.0), truth, False, 1)[
        "macro_f1"
    ]
    assert 0.98 < low < high == 1.0


@pytest.mark.parametrize(("right", "expected"), [(12, (0.757, 1.0)), (53, (0.902, 0.997)), (0, (0.0, 0.243))])
def test_few_rows_have_a_wide_interval(right, expected):
    rows = 12 if right != 53 else 54
    truth = np.zeros(rows, int)
    scores = np.eye(2)[(np.arange(rows) >= right).astype(int)]
    assert classifier_intervals(scores, truth, False, 1)["accuracy"] == pytest.approx(expected, abs=1e-3)


def test_means_and_losses():
    rng = np.random.default_rng(1)
    values = rng.random(400)
    low, high = mean_intervals({"mrr@10": values}, 1)["mrr@10"]
    assert low < values.mean() < high
    assert high - low == pytest.approx(2 * 1.96 * values.std() / 20, rel=0.15)
    tokens = rng.integers(5, 50, 400).astype(float)
    found = loss_intervals(tokens * 2.0, tokens, 1)
    assert found["loss"] == pytest.approx((2.0, 2.0), abs=1e-5)
    assert found["perplexity"] == pytest.approx((np.e**2, np.e**2), rel=1e-4)


def test_one_row_has_no_interval():
    assert classifier_intervals(*single(1, 1), False, 1) == {}
    assert mean_intervals({}, 1) == {}
