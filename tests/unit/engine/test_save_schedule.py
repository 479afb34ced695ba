from holdfast.engine.save_schedule import SaveCost, is_time_to_save, share_over_budget

CHEAP = SaveCost(stall_seconds=0.02, cpu_seconds=0.1, write_seconds=0.5)  # 12 s keep it at one percent
DEAR = SaveCost(stall_seconds=2.0, cpu_seconds=3.0, write_seconds=20.0)


def test_cheap_save_happens_once_it_costs_one_percent():
    assert not is_time_to_save(11.0, step_seconds=0.3, cost=CHEAP, at_stake_seconds=60)
    assert is_time_to_save(12.1, step_seconds=0.3, cost=CHEAP, at_stake_seconds=60)


def test_a_free_save_still_waits_a_few_seconds():
    assert not is_time_to_save(4.0, 0.3, SaveCost(), 60)
    assert is_time_to_save(5.1, 0.3, SaveCost(), 60)


def test_expensive_save_starts_early_enough_to_finish_in_time():
    assert not is_time_to_save(39.0, 0.5, DEAR, 60)
    assert is_time_to_save(39.8, 0.5, DEAR, 60)


def test_long_step_is_saved_before_the_next():
    assert is_time_to_save(35.0, step_seconds=30.0, cost=CHEAP, at_stake_seconds=60)


def test_saves_are_more_frequent_when_attempts_fail_soon():
    cost = SaveCost(cpu_seconds=0.4)  # 40 s keep it at one percent
    assert is_time_to_save(12.1, 0.3, cost, 60, mtbf_seconds=180)
    assert not is_time_to_save(11.9, 0.3, cost, 60, mtbf_seconds=180)
    assert not is_time_to_save(39.0, 0.3, cost, 60, mtbf_seconds=100_000)
    assert not is_time_to_save(9.9, 0.3, cost, 60, mtbf_seconds=0)  # never more than four percent


def test_save_cost_is_reported_only_above_one_percent():
    assert share_over_budget(CHEAP, 60) is None
    assert share_over_budget(CHEAP, 0) > 0.01
    assert share_over_budget(DEAR, 60) == 5.0 / 40.0
