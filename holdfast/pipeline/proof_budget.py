"""Decides what to prove before a run and at what cost, picks the fastest candidate, and forecasts the time.

Pure functions.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import msgspec

from holdfast.core.events import CandidateTimed
from holdfast.core.facts import MachineFacts, ModelFacts
from holdfast.core.records import Changes, ProofReason, TimedCandidate
from holdfast.core.settings import EngineSettings

BUDGET_SHARE = 0.05  # of the forecast run time, for the proof
# The usual advice for safety: one thread, padded. Timed for comparison, never chosen.
COMPARISON: Changes = {"threads": 1, "precision": "fp32", "packing": False}
_LEAST_BUDGET_SECONDS = 60.0
MOST_STEPS, FEWEST_STEPS = 100, 8  # of the run's own, before the kill
_LOADED_BYTES = 4  # per weight, whatever the file holds
_DISK_BYTES_PER_SECOND = 5e8
_TIMED_STEPS = 3  # of each candidate, at least
_START_SECONDS = 8.0  # for a process to load torch and a model, until it is measured
_LOSS_TOLERANCE = {"fp32": 2e-3, "bf16": 3e-2}
_NORM_TOLERANCE = {"fp32": 1e-2, "bf16": 1.5e-1}
_TENSOR_TOLERANCE = {"fp32": 1e-2, "bf16": 5e-1}  # for the gradient of the tensor that differs most
_FORWARD_SHARE = 0.4  # of a training step's time, for a forward pass over the same tokens
_FLOPS = {"cuda": 4e13, "mps": 2e12}
_CORE_FLOPS = 2.5e10
_ANSWER_TOKENS = 45.0  # of at most 60, since some answers end earlier
_BYTES_PER_SECOND = {"cuda": 1e12, "mps": 1e11, "cpu": 1e10}
_LAYER_SECONDS = 1e-3  # to call one layer for one token
_BF16_FLAGS = ("amx_bf16", "avx512_bf16", "bf16")
SECONDS_EACH = 1.5
_FASTER = 1.03  # a smaller gain is noise


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """How much a run has to compute."""

    steps: int
    step_tokens: float
    evaluations: int
    evaluation_tokens: int
    report_tokens: int
    largest_read_tokens: int = 0  # at once, as far as a micro-batch holds them
    late_steps: int = 0  # the last steps, which have mined hard negatives
    late_tokens: float = 0.0  # of the hard negatives in such a step
    minings: int = 0
    mining_tokens: int = 0  # read for one mining
    answers: int = 0  # that a language model writes at each evaluation and at the end


@dataclass(frozen=True, slots=True, kw_only=True)
class ProofCosts:
    """Estimated seconds of each part of a proof."""

    longest: float  # the longest examples
    first_steps: float  # kill and resume in the first steps
    start: float  # of the process that times candidates
    candidate: float  # each of them


@dataclass(frozen=True, slots=True, kw_only=True)
class ProofPlan:
    """Which parts to prove, and why not the others."""

    longest: bool
    candidates: int  # at most; one alone decides nothing
    first_steps: bool
    budget_seconds: float
    reason: ProofReason = ""


def rough_seconds(
    work: Work, model: ModelFacts, machine: MachineFacts, device: str, task: str, processes: int = 1
) -> float:
    """Estimated run time from the size of the model alone; right within a factor of about three."""
    inner = max(1, model.parameters - (0 if task == "causal" else model.vocabulary * model.hidden))
    cores = min(machine.cpu_count or 1, machine.cpu_count_physical or 10**6)
    flops = _FLOPS[device] * processes if device in _FLOPS else _CORE_FLOPS * cores
    trained = 6.0 * inner * work.steps * work.step_tokens
    read = 2.0 * inner * (work.evaluations * work.evaluation_tokens + work.report_tokens)
    return start_seconds(processes) + (trained + read) / flops + 0.02 * work.steps


def start_seconds(processes: int) -> float:
    """Estimated start-up time of an attempt; with several processes, torchrun loads torch first."""
    return _START_SECONDS if processes == 1 else 2 * _START_SECONDS


def proof_costs(
    work: Work, model: ModelFacts, processes: int, step_seconds: float, longest_seconds: float
) -> ProofCosts:
    """What a proof takes: a large model is slow to load and to save, whatever it computes."""
    load = model.parameters * _LOADED_BYTES / _DISK_BYTES_PER_SECOND
    start = start_seconds(processes) + load
    return ProofCosts(
        longest=start + 2.0 + longest_seconds + load,  # which also saves it
        first_steps=start + 2.0 + steps_wanted(work.steps) * step_seconds + load,
        start=start,
        candidate=SECONDS_EACH + 2.0 + load + _TIMED_STEPS * step_seconds,
    )


def choose_proof(mode: str, run_seconds: float, candidates: int, costs: ProofCosts) -> ProofPlan:
    """Prove what fits into five percent of the run, the part that tells most first."""
    if mode == "never":
        return ProofPlan(longest=False, candidates=0, first_steps=False, budget_seconds=0, reason="as requested")
    if mode == "always":
        return ProofPlan(longest=True, candidates=candidates, first_steps=True, budget_seconds=0)
    left = budget = BUDGET_SHARE * run_seconds
    longest = costs.longest <= left
    left -= costs.longest if longest else 0.0
    first_steps = costs.first_steps <= left
    left -= costs.first_steps if first_steps else 0.0
    timed = min(candidates, max(0, int((left - costs.start) / costs.candidate)))
    timed = timed if timed > 1 else 0
    is_whole = longest and first_steps and timed == candidates
    reason: ProofReason = (
        "" if is_whole else "run too short for all" if longest or first_steps or timed else "run too short"
    )
    return ProofPlan(longest=longest, candidates=timed, first_steps=first_steps, budget_seconds=budget, reason=reason)


def most_seconds(run_seconds: float) -> float:
    """The time after which a proof is cut short: estimates may be wrong."""
    return max(_LEAST_BUDGET_SECONDS, BUDGET_SHARE * run_seconds)


def steps_wanted(steps: int) -> int:
    """How many of the run's first steps are done before the kill."""
    return max(FEWEST_STEPS, min(MOST_STEPS, int(0.02 * steps)))


def candidates_for(settings: EngineSettings, machine: MachineFacts, step_tokens: float) -> tuple[Changes, ...]:
    """The plan itself, then other ways to compute the same thing that may be faster here."""
    found: list[Changes] = [{}]
    if settings.device != "cpu" or settings.processes > 1:  # how they share cores is asked for
        return tuple(found)
    # Another device first: it may gain the most, and a short proof times only the first candidates.
    found += [
        {"device": trial.device} for trial in machine.trials if (trial.device, trial.outcome) == ("mps", "agrees")
    ]
    threads = settings.threads or 1
    allowed = machine.cpu_count or threads
    found += [
        {"threads": count} for count in dict.fromkeys((allowed, threads // 2, 1)) if count >= 1 and count != threads
    ]
    for tokens in dict.fromkeys(1 << max(9, int(step_tokens / share).bit_length() - 1) for share in (2, 6)):
        if tokens < step_tokens * 0.7 and tokens < settings.micro_tokens:
            found.append({"micro_tokens": tokens})
    if settings.precision == "fp32" and any(flag in machine.cpu_flags for flag in _BF16_FLAGS):
        found.append({"precision": "bf16"})
    return tuple(found)


def words_of(settings: EngineSettings, candidate: Changes, *, is_packed: bool = True) -> str:
    """A candidate in a few words: `2 threads fp32 packed, 4,096 tokens at once`."""
    value = replace(settings, **candidate)
    threads = f"{value.threads} threads" if (value.threads or 1) > 1 else "one thread"
    device = threads if value.device == "cpu" else value.device
    parts = [device, value.precision, "packed" if is_packed and value.packing else "padded"]
    if value.compile:
        parts.append("compiled")
    tokens = f", {value.micro_tokens:,} tokens at once" if "micro_tokens" in candidate else ""
    return " ".join(parts) + tokens


def judge(
    settings: EngineSettings, timed: Sequence[CandidateTimed], not_eligible: Sequence[int]
) -> tuple[TimedCandidate, ...]:
    """Compare every candidate with the first; the fastest that computes the same is chosen."""
    trials = [event.result for event in timed]
    if not trials or trials[0] is None or trials[0].loss is None or trials[0].norm is None:
        return ()
    measured = []
    for event, trial in zip(timed, trials, strict=True):
        one = TimedCandidate(
            changes=event.candidate,
            words=words_of(settings, event.candidate, is_packed=trial.is_packed if trial else True),
            error=event.error,
            is_reference=trial is trials[0],
            is_comparison=event.number in not_eligible,
        )
        if trial:
            one = msgspec.structs.replace(
                one,
                tokens_per_second=trial.tokens_per_second,
                samples_per_second=trial.samples_per_second,
                peak_bytes=trial.peak_bytes,
            )
        if trial and trial.loss is not None and trial.norm is not None:
            precision = str(event.candidate.get("precision", settings.precision))
            loss_off, is_same = compare_losses(trials[0].loss, trial.loss, precision)
            norm_off = _off(trials[0].norm, trial.norm)
            gradient_off = trial.gradient_off
            is_same_gradient = gradient_off is not None and gradient_off <= _TENSOR_TOLERANCE[precision]
            agrees = is_same and norm_off <= _NORM_TOLERANCE[precision] and is_same_gradient
            one = msgspec.structs.replace(
                one, agrees=agrees, loss_off=loss_off, norm_off=norm_off, gradient_off=gradient_off
            )
        measured.append(one)
    eligible = [at for at, one in enumerate(measured) if one.agrees and not one.is_comparison]
    if not eligible:  # the plan itself gives no number to compare with
        return ()
    best = max(eligible, key=lambda at: measured[at].tokens_per_second)
    if measured[best].tokens_per_second < _FASTER * measured[0].tokens_per_second:
        best = 0
    measured[best] = msgspec.structs.replace(measured[best], is_chosen=True)
    return tuple(measured)


def compare_losses(wanted: float, found: float, precision: str) -> tuple[float, bool]:
    """The relative difference of a loss, and whether it is rounding at this precision."""
    off = _off(wanted, found)
    return off, off <= _LOSS_TOLERANCE[precision]


def forecast_seconds(
    work: Work, done: int, step_seconds: float, answer_seconds: float = 0.0, export_seconds: float = 4.0
) -> float:
    """The time left after `done` steps, from the speed measured over the last of them."""
    left = max(0, work.steps - done)
    evaluations = math.ceil(work.evaluations * left / max(1, work.steps))  # each comes at the end of its steps
    is_late = work.late_steps >= left  # the measured steps had hard negatives too
    per_token = step_seconds / max(1.0, work.step_tokens + (work.late_tokens if is_late else 0.0))
    late_tokens = 0.0 if is_late else work.late_steps * work.late_tokens
    minings = work.minings * (left / work.late_steps if is_late and work.late_steps else 1)
    read_tokens = evaluations * work.evaluation_tokens + work.report_tokens + minings * work.mining_tokens
    answers = work.answers * (evaluations + 1)
    return (
        left * step_seconds
        + late_tokens * per_token
        + read_tokens * _FORWARD_SHARE * per_token
        + answers * answer_seconds
        + export_seconds
    )


def answer_seconds(model: ModelFacts, device: str, share_of_cores: float = 1.0) -> float:
    """Estimated time for a language model to write one answer: each token reads all weights once."""
    reading = 4.0 * model.parameters / _BYTES_PER_SECOND.get(device, _BYTES_PER_SECOND["cpu"])
    return _ANSWER_TOKENS * (reading + _LAYER_SECONDS * max(1, model.layers)) / min(1.0, max(0.05, share_of_cores))


def _off(wanted: float, found: float) -> float:
    return abs(found - wanted) / max(abs(wanted), 1e-6)
