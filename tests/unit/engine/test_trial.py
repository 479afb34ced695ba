from holdfast.engine.trial import fewest_steps


def test_slow_candidate_is_timed_by_one_step():
    assert fewest_steps(35.0, best=0.0) == 2  # the first candidate
    assert fewest_steps(35.0, best=64.0) == 2
    assert fewest_steps(6.0, best=64.0) == 1
