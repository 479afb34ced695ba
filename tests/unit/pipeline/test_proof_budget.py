"""What is proven before a run, and which candidate wins."""

from dataclasses import replace

import pytest

from holdfast.core.events import CandidateTimed
from holdfast.core.facts import DeviceTrial, MachineFacts, ModelFacts
from holdfast.core.records import TrialTiming
from holdfast.core.settings import EngineSettings
from holdfast.pipeline.proof_budget import (
    ProofCosts,
    ProofPlan,
    Work,
    candidates_for,
    choose_proof,
    forecast_seconds,
    judge,
    most_seconds,
    proof_costs,
    words_of,
)

SETTINGS = EngineSettings(task="classify", model="/m", prepared="/p", run="/r", threads=4)


def told(number: int, speed: float, *, loss: float = 1.0, norm: float = 1.0, gradient: float = 0.0, **candidate):
    speeds = {"tokens_per_second": speed, "samples_per_second": 1.0}
    result = TrialTiming(loss=loss, norm=norm, gradient_off=gradient, **speeds)
    return CandidateTimed(number=number, candidate=candidate, result=result)


def chosen(*events, not_eligible=()):
    return [one.changes for one in judge(SETTINGS, events, not_eligible) if one.is_chosen]


COSTS = ProofCosts(longest=10.0, first_steps=10.0, start=8.0, candidate=4.0)
LARGE = ModelFacts(name="large", folder="/l", parameters=8_000_000_000)


def cost_of(proof: ProofPlan, costs: ProofCosts = COSTS) -> float:
    """What the chosen parts are expected to take."""
    timed = costs.start + proof.candidates * costs.candidate if proof.candidates else 0.0
    return proof.longest * costs.longest + proof.first_steps * costs.first_steps + timed


def test_a_run_shorter_than_its_proof_is_not_proven():
    proof = choose_proof("auto", 60.0, 3, COSTS)
    assert (proof.longest, proof.candidates, proof.first_steps) == (False, 0, False)
    assert proof.reason == "run too short"


@pytest.mark.parametrize("seconds", [0.0, 60.0, 250.0, 400.0, 700.0, 900.0, 3600.0, 1e6])
def test_proof_stays_within_five_percent(seconds):
    proof = choose_proof("auto", seconds, 5, COSTS)
    assert cost_of(proof) <= 0.05 * seconds
    assert proof.candidates != 1
    assert most_seconds(seconds) == max(60.0, 0.05 * seconds)


def test_candidates_are_cut_to_what_there_is_time_for():
    timed = [choose_proof("auto", seconds, 5, COSTS).candidates for seconds in (600.0, 800.0, 1000.0)]
    assert timed == [0, 3, 5]


def test_a_large_model_is_proven_only_in_a_long_run():
    work = Work(steps=60, step_tokens=8000.0, evaluations=1, evaluation_tokens=8000, report_tokens=8000)
    costs = proof_costs(work, LARGE, 1, step_seconds=1.0, longest_seconds=4.0)
    assert costs.longest > 60
    assert not choose_proof("auto", 60.0, 3, costs).longest
    assert choose_proof("auto", 86_400.0, 3, costs).longest


def test_always_and_never_are_obeyed():
    assert choose_proof("always", 1.0, 1, COSTS).first_steps
    assert not choose_proof("never", 1e6, 9, COSTS).longest


def test_the_fastest_that_agrees_wins():
    assert chosen(told(0, 100), told(1, 150, threads=8), told(2, 400, precision="bf16", loss=2.0)) == [{"threads": 8}]


def test_device_with_one_wrong_gradient_is_never_chosen():
    mps = {"device": "mps"}
    assert chosen(told(0, 100), told(1, 900, gradient=0.3, **mps)) == [{}]
    assert chosen(told(0, 100), told(1, 900, gradient=float("nan"), **mps)) == [{}]
    assert chosen(told(0, 100), told(1, 900, gradient=1e-4, **mps)) == [mps]


def test_mps_is_timed_first_where_its_test_step_agrees():
    def offered(outcome):
        trial = DeviceTrial(device="mps", outcome=outcome, detail="", seconds=1.0)
        return candidates_for(SETTINGS, MachineFacts(cpu_count=8, trials=(trial,)), 1000)

    assert offered("agrees")[:2] == ({}, {"device": "mps"})
    assert {"device": "mps"} not in offered("differs")


def test_bf16_may_differ_a_little():
    assert chosen(told(0, 100), told(1, 150, precision="bf16", loss=1.01)) == [{"precision": "bf16"}]


def test_a_difference_that_may_be_noise_changes_nothing():
    assert chosen(told(0, 100), told(1, 102, threads=8)) == [{}]


def test_comparison_candidate_is_never_chosen():
    assert chosen(told(0, 100), told(1, 900, threads=1), not_eligible=(1,)) == [{}]


def test_failed_candidate_is_reported_and_skipped():
    broken = CandidateTimed(number=1, candidate={"compile": True}, error="no compiler")
    measured = judge(SETTINGS, [told(0, 100), broken], ())
    assert [one.error for one in measured if not one.agrees] == ["no compiler"]


def test_bf16_is_tried_only_where_the_chip_has_it():
    plain = candidates_for(SETTINGS, MachineFacts(cpu_count=8), 1000)
    amx = candidates_for(SETTINGS, MachineFacts(cpu_count=8, cpu_flags=("amx_bf16",)), 1000)
    assert {"precision": "bf16"} not in plain
    assert {"precision": "bf16"} in amx


def test_smaller_micro_batches_need_a_larger_step():
    assert candidates_for(SETTINGS, MachineFacts(cpu_count=4), 200) == (
        {},
        {"threads": 2},
        {"threads": 1},
    )
    large = candidates_for(SETTINGS, MachineFacts(cpu_count=4), 9000)
    assert {"micro_tokens": 4096} in large
    assert [one for one in candidates_for(SETTINGS, MachineFacts(cpu_count=4), 1400) if "micro_tokens" in one] == [
        {"micro_tokens": 512}
    ]


def test_a_candidate_reads_like_a_sentence():
    assert words_of(SETTINGS, {"threads": 1, "packing": False}) == "one thread fp32 padded"
    assert words_of(SETTINGS, {"micro_tokens": 4096}) == "4 threads fp32 packed, 4,096 tokens at once"


def test_the_forecast_counts_steps_evaluations_and_the_report():
    work = Work(steps=100, step_tokens=1000, evaluations=2, evaluation_tokens=10_000, report_tokens=20_000)
    assert forecast_seconds(work, 0, 1.0, export_seconds=0) == pytest.approx(100 + 0.4 * 0.001 * 40_000)


def test_late_forecast_counts_the_final_evaluation():
    work = Work(steps=100, step_tokens=1000, evaluations=1, evaluation_tokens=10_000, report_tokens=0)
    assert forecast_seconds(work, 90, 1.0, export_seconds=0) == pytest.approx(10 + 0.4 * 0.001 * 10_000)


def test_the_forecast_counts_mining_and_the_near_misses_it_brings():
    work = Work(steps=100, step_tokens=1000, evaluations=0, evaluation_tokens=0, report_tokens=0)
    mined = replace(work, late_steps=50, late_tokens=500, minings=1, mining_tokens=10_000)
    assert forecast_seconds(mined, 0, 1.0, export_seconds=0) == pytest.approx(100 + 50 * 0.5 + 0.4 * 0.001 * 10_000)
    assert forecast_seconds(mined, 60, 1.5, export_seconds=0) == pytest.approx(40 * 1.5 + 0.8 * 0.4 * 0.001 * 10_000)


def test_the_forecast_counts_the_answers_that_a_language_model_writes():
    work = Work(steps=10, step_tokens=10, evaluations=2, evaluation_tokens=0, report_tokens=0, answers=3)
    assert forecast_seconds(work, 0, 1.0, answer_seconds=2.0, export_seconds=0) == pytest.approx(10 + 3 * 3 * 2.0)


def test_plan_with_nan_loss_is_not_changed():
    assert judge(SETTINGS, [told(0, 100, loss=float("nan")), told(1, 150, threads=8)], ()) == ()
