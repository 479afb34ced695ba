"""The sentences about a proof and a forecast, one function for each value."""

import time
from collections.abc import Mapping

from holdfast.core.records import (
    CutProof,
    FirstSteps,
    Forecast,
    LongestExamples,
    LossParity,
    Proof,
    ProofPart,
    ProofReason,
    ProofResult,
    RecalledProof,
    ResumeCheck,
    SkippedProof,
    TimedCandidate,
)
from holdfast.core.text import human_seconds, processes_words
from holdfast.runs.wording import Mark, cores_text

_PARTS: Mapping[ProofPart, str] = {
    "longest": "the longest examples",
    "processes": "that several processes compute the same as one",
    "device": "that the GPU computes the same as the CPU with this model",
    "candidates": "some ways to compute the same",
    "first_steps": "a kill and resume of the first steps",
}


def proof_text(result: ProofResult) -> str:
    """One check of the proof in a sentence."""
    match result:
        case RecalledProof():
            return f"settings proven on this machine {_ago(result.at)}: {result.words}"
        case LongestExamples():
            return _longest(result)
        case LossParity():
            return _parity(result)
        case TimedCandidate():
            verdict = candidate_verdict(result)
            speed = f"{result.samples_per_second:,.1f} examples/s, {result.tokens_per_second:,.0f} tokens/s"
            return f"{result.words}: {speed}" + (f" ({verdict})" if verdict else "")
        case FirstSteps(state="failed"):
            return "the first steps ended before they could be measured; the attempts will show why"
        case FirstSteps():
            return "the run finished before the resume test could interrupt it"
        case ResumeCheck():
            return _resume(result)
        case CutProof():
            limit = human_seconds(result.limit_seconds)
            return f"not proven: {_PARTS[result.part]}, which would take the proof over its limit of {limit}"
    return f"skipped: {_reason(result.reason, result.run_seconds, result.budget_seconds)}"


def proof_mark(result: ProofResult) -> Mark:
    """Whether a check passed, failed or was left out."""
    match result:
        case LossParity(agrees=False) | FirstSteps(state="failed") | ResumeCheck(is_exact=False):
            return "!"
        case SkippedProof() | CutProof():
            return "--"
    return "ok"


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


def _reason(reason: ProofReason, run_seconds: float, budget_seconds: float) -> str:
    short = f"about {human_seconds(run_seconds)} of training leaves {human_seconds(budget_seconds)} for the proof"
    match reason:
        case "run too short":
            return f"the run is short: {short}"
        case "run too short for all":
            return short
        case "sharded weights":
            return "the weights fit only on all machines together"
        case "no candidate timed":
            return "no candidate could be timed; the plan is kept"
    return reason


def _longest(one: LongestExamples) -> str:
    changes = ", ".join(f"{name} {value}" for name, value in one.changes.items())
    return (
        f"the {one.examples} longest examples (longest: {one.longest_tokens:,} tokens): step, evaluate and save "
        f"in {one.seconds:.0f} s"
        + (" on this machine alone" if one.is_one_machine else "")
        + (f"; needed {changes}" if changes else "")
    )


def _parity(one: LossParity) -> str:
    who, whom = one.device, "the CPU"
    if one.against == "one process":
        who, whom = processes_words(one.processes), "one process"
    numbers = f"({one.loss:.4g}, {one.reference_loss:.4g})"
    if one.agrees:
        return f"loss with {who} matches {whom} {numbers}"
    return f"loss with {who} differs from {whom} {numbers}; training with {whom} instead"


def _resume(one: ResumeCheck) -> str:
    if one.is_exact:
        return f"killed without warning and resumed: {one.steps} steps repeated bit for bit"
    found = f"after a kill, step {one.different_step} gave a different loss: {one.loss} instead of {one.expected_loss}"
    if one.is_device_inexact:
        return f"{found}; MPS adds the gradients of embeddings in no fixed order, so its rounding varies"
    return found
