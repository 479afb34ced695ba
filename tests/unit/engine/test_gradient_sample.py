"""Gradients of two devices are compared tensor by tensor, by some of their values."""

import numpy as np
import pytest

from holdfast.engine.gradient_sample import largest_difference, read_sample, sampled, write_sample

GRADIENT = {"matrix": np.ones(100, np.float32), "bias": np.full(4, 1e-6, np.float32)}


def test_one_wrong_tensor_is_found():
    wrong = {**GRADIENT, "matrix": np.where(np.arange(100) < 10, 2, 1).astype(np.float32)}
    assert largest_difference(GRADIENT, GRADIENT) == 0
    assert largest_difference(GRADIENT, wrong) == pytest.approx(0.1**0.5)


def test_tensor_with_next_to_no_gradient_is_noise():
    assert largest_difference(GRADIENT, {**GRADIENT, "bias": -GRADIENT["bias"]}) < 1e-3


@pytest.mark.parametrize("found", [{}, {**GRADIENT, "bias": np.full(4, np.nan, np.float32)}, {**GRADIENT, "more": []}])
def test_nan_and_missing_tensors_never_agree(found):
    assert largest_difference(GRADIENT, found) == float("inf")


def test_sample_is_small_and_survives_a_file(tmp_path):
    sample = {"weight": sampled(np.arange(1_000_000, dtype=np.float32).reshape(1000, 1000))}
    assert len(sample["weight"]) <= 4096
    assert read_sample(tmp_path) is None
    write_sample(tmp_path, sample)
    found = read_sample(tmp_path)
    assert found is not None
    assert (found["weight"] == sample["weight"]).all()
