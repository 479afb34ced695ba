import numpy as np

from holdfast.engine.calibration import calibration_error, fit, probabilities


def too_sure(multi: bool) -> tuple[np.ndarray, np.ndarray]:
    """Scores three times as far apart as the truth they stand for."""
    draws = np.random.default_rng(0)
    honest = draws.normal(size=(20_000, 4)) * 1.5
    chances = probabilities(honest, multi)
    if multi:
        return 3 * honest, (draws.random(chances.shape) < chances).astype(np.float32)
    return 3 * honest, np.array([draws.choice(4, p=row) for row in chances])


def test_temperature_undoes_overconfidence():
    for multi in (False, True):
        logits, truth = too_sure(multi)
        found = fit(logits, truth, multi)
        assert abs(found.temperature - 3) < 0.15
        assert found.loss_after < found.loss_before
        assert found.error_after < 0.02 < found.error_before


def test_softmax_probabilities_sum_to_one():
    chances = probabilities(np.array([[1000.0, 0.0], [0.0, 0.0]]), is_multi=False)
    assert np.allclose(chances.sum(1), 1)
    assert np.allclose(chances[1], 0.5)


def test_always_correct_model_has_zero_calibration_error():
    assert calibration_error(np.array([[50.0, 0.0], [0.0, 50.0]]), np.array([0, 1]), is_multi=False) < 1e-6
