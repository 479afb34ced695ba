"""What a person reads about a proof and a forecast: one function for each value."""

import time
from collections.abc import Callable, Mapping
from typing import Any

from holdfast.core.events import ProofReported
from holdfast.core.records import Forecast, Proof, TimedCandidate, to_record
from holdfast.core.text import human_seconds, processes_words
from holdfast.runs.wording import cores_text


def proof_reported(event: ProofReported) -> str:
    """One check of the proof in a sentence."""
    return _CHECKS[event.check](event.facts, event.state)


def forecast_basis(forecast: Forecast) -> str:
    """What a forecast is based on."""
    if forecast.basis == "measured steps":
        return _measured(forecast.steps, forecast.step_seconds, forecast.cores)
    if forecast.basis == "earlier run":
        return "estimated from the speed of an earlier run on this machine"
    return "estimated from the model size; not measured yet"


def proof_reason(proof: Proof) -> str:
    """Why a proof, or a part of it, was skipped; empty if nothing was."""
    if proof.state == "remembered" and proof.remembered_at is not None:
        return f"proven here {_ago(proof.remembered_at)}: {proof.remembered_words}"
    return _reason(proof.reason, proof.run_seconds, proof.budget_seconds)


def candidate_verdict(one: TimedCandidate) -> str:
    """What the timing of a candidate led to; empty when it agrees but was not the fastest."""
    if one.error:
        return one.error
    if one.is_chosen:
        return "chosen"
    if one.is_comparison:
        return "for comparison only"
    if not one.agrees and one.loss_off is not None and one.norm_off is not None:
        return f"its loss is off by {one.loss_off:.1e}, its gradient by {one.norm_off:.1e}"
    return ""


def _ago(at: float) -> str:
    days = (time.time() - at) / 86_400
    return "today" if days < 1 else f"{days:.0f} days ago"


def _measured(steps: int, step_seconds: float | None, cores: float | None) -> str:
    condition = "if nothing fails"
    if cores:
        condition += f" and other programs leave it {cores_text(cores)}, as now"
    return f"measured over {steps} steps of {human_seconds(step_seconds or 0.0)}; {condition}"


def _reason(reason: str, run_seconds: float, budget_seconds: float) -> str:
    short = f"about {human_seconds(run_seconds)} of training leaves {human_seconds(budget_seconds)} for the proof"
    return {
        "as requested": "as requested",
        "sharded weights": "the weights fit only on all machines together",
        "run too short": f"the run is short: {short}",
        "run too short for all": short,
    }.get(reason, "")


def _longest(facts: Mapping[str, Any], state: str) -> str:
    changes = ", ".join(f"{name} {value}" for name, value in facts["changes"].items())
    return (
        f"the {facts['examples']} longest examples (longest: {facts['longest_tokens']:,} tokens): step, evaluate, "
        f"save and export in {facts['seconds']:.0f} s"
        + (" on this machine alone" if facts["one_machine_only"] else "")
        + (f"; needed {changes}" if changes else "")
    )


def _parity(facts: Mapping[str, Any], state: str) -> str:
    who = processes_words(facts["processes"]) if facts["against"] == "one process" else facts["device"]
    whom = "one process" if facts["against"] == "one process" else "the CPU"
    numbers = f"({facts['loss']:.4g}, {facts['reference_loss']:.4g})"
    if state == "failed":
        return f"loss with {who} differs from {whom} {numbers}; training with {whom} instead"
    return f"loss with {who} matches {whom} {numbers}"


def _candidate(facts: Mapping[str, Any], state: str) -> str:
    one = to_record(facts, TimedCandidate)
    if one is None:
        return "no candidate could be timed; the plan is kept"
    verdict = candidate_verdict(one)
    speed = f"{one.samples_per_second:,.1f} examples/s, {one.tokens_per_second:,.0f} tokens/s"
    return f"{one.words}: {speed}" + (f" ({verdict})" if verdict else "")


def _first_steps(facts: Mapping[str, Any], state: str) -> str:
    if state == "failed":
        return "the first steps ended before they could be measured; the attempts will show why"
    return "the run finished before the resume test could interrupt it"


def _resume(facts: Mapping[str, Any], state: str) -> str:
    if state == "failed":
        found = f"{facts['loss']} instead of {facts['expected_loss']}"
        return f"after a kill, step {facts['different_step']} gave a different loss: {found}"
    return f"killed without warning and resumed: {facts['steps']} steps repeated bit for bit"


_CHECKS: Mapping[str, Callable[[Mapping[str, Any], str], str]] = {
    "remembered": lambda facts, state: f"settings proven on this machine {_ago(facts['at'])}: {facts['words']}",
    "longest": _longest,
    "processes": _parity,
    "device": _parity,
    "candidate": _candidate,
    "first_steps": _first_steps,
    "resume": _resume,
    "skipped": lambda facts, state: (
        "skipped: " + _reason(facts["reason"], facts["run_seconds"], facts["budget_seconds"])
    ),
}
