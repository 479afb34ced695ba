"""The arithmetic of useful time on many machines: the formula, the game of chance and the page agree."""

import math
import random

import pytest

from perf.simulate import (
    CHARTS,
    FAILURES_A_SECOND,
    PUBLISHED,
    Costs,
    best_interval,
    files_of,
    played,
    played_share,
    read_inputs,
    useful_share,
)
from tests.docs_text import name_of
from tools.ledger import LEDGER, Line, read_ledger

COSTS = Costs(save=0.5, write=3.0, restart=30.0)
FREE = Costs(save=0.0, write=0.0, restart=0.0)


def test_without_failures_only_saving_costs():
    assert useful_share(1e-12, 60.0, COSTS) == pytest.approx(60.0 / 60.5)


def test_failure_costs_half_an_interval_write_and_restart():
    between = 100_000.0
    assert 1 - useful_share(1 / between, 60.0, FREE) == pytest.approx(30.0 / between, rel=0.01)
    dear = Costs(save=0.0, write=20.0, restart=50.0)
    assert 1 - useful_share(1 / between, 60.0, dear) == pytest.approx(100.0 / between, rel=0.01)


@pytest.mark.parametrize("machines", [1, 100, 10_000, 100_000])
def test_formula_and_game_of_chance_agree(machines):
    rate = machines * FAILURES_A_SECOND
    mean, error = played(rate, 60.0, COSTS, seed=machines)
    assert abs(mean - useful_share(rate, 60.0, COSTS)) < 4 * error + 1e-9


def test_run_failing_after_each_restart_makes_no_progress():
    assert played_share(1.0, 60.0, Costs(save=0.0, write=0.0, restart=5.0), random.Random(0)) < 0.001
    assert useful_share(1.0, 60.0, Costs(save=0.0, write=0.0, restart=5.0)) < 0.001


@pytest.mark.parametrize("between", [600.0, 20_000.0, 1e6])
def test_no_other_interval_is_better_than_the_best_one(between):
    best = best_interval(1 / between, COSTS.save)
    most = useful_share(1 / between, best, COSTS)
    for factor in (0.5, 0.8, 0.95, 1.05, 1.25, 2.0):
        assert useful_share(1 / between, best * factor, COSTS) < most
    assert best == pytest.approx(math.sqrt(2 * COSTS.save * between), rel=0.1)  # Young's rule


def test_published_failure_rates_are_plausible():
    assert [round(one.days_a_machine) for one in PUBLISHED] == [264, 154, 71]
    hours_of_16_384_cards = PUBLISHED[0].days_a_machine * 24 / 2_048
    assert hours_of_16_384_cards == pytest.approx(3.1, abs=0.1)  # as the paper says of its run


def test_unmeasured_costs_are_marked_as_assumed():
    old = Line("2026-01-01", "aaaaaaa", "a machine", "restart minilm", "new process", "seconds", 40.0, 5)
    new = Line("2026-01-02", "bbbbbbb", "a machine", "restart minilm", "new process", "seconds", 20.0, 5)
    costs, inputs = read_inputs([old, new])
    assert costs.restart == 20.0
    assert [one.source.startswith("assumed") for one in inputs] == [True, True, False]
    assert "commit bbbbbbb" in inputs[-1].source


def test_the_page_is_what_the_ledger_gives():
    wanted = files_of(read_ledger(LEDGER))
    outdated = [name_of(path) for path, text in wanted.items() if not path.exists() or path.read_text() != text]
    assert outdated == [], "run: make numbers"
    assert set(CHARTS.glob("*.svg")) == {path for path in wanted if path.suffix == ".svg"}
