"""Proves a run before time is spent on it: the longest examples, candidates, first steps with a kill.

    longest      the longest examples through a whole small run: step, evaluate, save. It is supervised like any run, so
                 a plan that crashes takes a fallback here. Several processes must agree with one, a GPU with the CPU.
    candidates   other ways to compute the same, timed; the fastest that agrees wins.
    first steps  the run's own first steps: speed and memory are measured, then the process is killed; the first attempt
                 continues from the checkpoint and must repeat the steps bit for bit.

A proof costs at most 5% of the forecast run or a minute, whichever is larger. What does not fit is left out, and what
takes longer than estimated is cut off; `Proof.not_proven` says what is missing. The export is left to the end of the
run, where it is needed anyway: writing a large model here would cost more than it saves.

Reads: plan.json, prepared/. Leaves: proof.json, proof/.
"""

import math
import shutil
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol

import msgspec

from holdfast.core.event_log import EventSink, read_events
from holdfast.core.events import CandidateTimed, ProofReported, StageStarted
from holdfast.core.facts import MachineFacts
from holdfast.core.plan import Choice
from holdfast.core.records import (
    Changes,
    CutProof,
    FirstSteps,
    LongestExamples,
    LossParity,
    Proof,
    ProofPart,
    ProofResult,
    RecalledProof,
    RunPlan,
    SkippedProof,
    TimedCandidate,
    TrialRequest,
    write_record,
)
from holdfast.core.run_memory import RememberedProof, fingerprint_of, recall_proof, remember_proof
from holdfast.core.runfolder import EVENTS
from holdfast.core.settings import EngineSettings, TrainRequest, nodes_of
from holdfast.core.text import plural
from holdfast.data.amounts import amounts_of
from holdfast.data.subset import write_longest
from holdfast.pipeline.forecast import work_of, write_rough_forecast
from holdfast.pipeline.proof_budget import (
    COMPARISON,
    FEWEST_STEPS,
    SECONDS_EACH,
    ProofPlan,
    Work,
    candidates_for,
    choose_proof,
    compare_losses,
    judge,
    most_seconds,
    proof_costs,
    rough_seconds,
    start_seconds,
    steps_wanted,
)

_COMPARE_FROM_SECONDS = 90.0  # of proof, from which the usual advice is timed too, for comparison
_SAVE_SECONDS = 3.0
_CHEAP_SECONDS = 15.0


class SmallRun(NamedTuple):
    """The result of a small run."""

    loss: float | None
    changes: Changes  # it needed to finish
    peak_bytes: int | None
    seconds: float


class ProofRuns(Protocol):
    """Starts the engine for a proof. Each child is ended after `seconds`."""

    def warm_up(self) -> None:
        """Prepare a process for the next child, while something else is done."""

    def small(
        self, folder: Path, settings: EngineSettings, variables: Changes, words: str, seconds: float
    ) -> SmallRun | None:
        """A whole supervised run of one step; None if it was cut off."""

    def time_candidates(
        self, folder: Path, settings: EngineSettings, variables: Changes, words: str, seconds: float
    ) -> None:
        """Time the candidates of a folder; those that were timed have an event there."""

    def first_steps(
        self, folder: Path, settings: EngineSettings, variables: Changes, wanted: int, seconds: float
    ) -> FirstSteps:
        """Do a run's first steps, and kill it after this many."""


def prove(
    run: Path, request: TrainRequest, plan: RunPlan, machine: MachineFacts, report: EventSink, processes: ProofRuns
) -> Proof:
    """Prove what is worth proving, and write what was found into proof.json."""
    proof = _Proving(run, request, plan, machine, report, processes).prove()
    write_record(run, proof)
    return proof


class _Proving:
    """The proof of one run. What a part finds out goes into the settings of later parts, and into proof.json."""

    def __init__(
        self,
        run: Path,
        request: TrainRequest,
        plan: RunPlan,
        machine: MachineFacts,
        report: EventSink,
        processes: ProofRuns,
    ):
        self._run, self._request, self._plan, self._machine = run, request, plan, machine
        self._report, self._children = report, processes
        self._folder = run / "proof"
        self._settings = plan.settings  # as proven so far
        self._variables: dict[str, str] = {}  # of the environment, that the longest examples were found to need
        self._amounts = amounts_of(Path(self._settings.prepared), self._settings.batch_size)
        self._work = work_of(self._settings, self._amounts)
        self._parity: list[LossParity] = []
        self._candidates: tuple[TimedCandidate, ...] = ()
        self._choices: dict[str, Choice[Any]] = {}
        self._not_proven: list[ProofPart] = []
        self._begun, self._limit_seconds = time.monotonic(), math.inf

    def prove(self) -> Proof:
        """Do the parts that are worth their time."""
        known = recall_proof(self._settings, self._plan.model) if self._request.prove == "auto" else None
        seconds = self._estimate(known)
        write_rough_forecast(self._run, self._plan, seconds, from_earlier_run=bool(known and known.tokens_per_second))
        offered = self._offered()
        scope = self._scope(seconds, offered, known)
        if self._request.prove == "auto":
            self._limit_seconds = most_seconds(seconds)
        if known:
            self._settings, self._candidates = replace(self._settings, **known.changes), known.candidates
        shutil.rmtree(self._folder, ignore_errors=True)
        if not (scope.longest or scope.candidates or scope.first_steps):
            return self._skip(scope, known, seconds)
        self._report(StageStarted(stage="prove"))
        if known and known.candidates:
            self._tell(RecalledProof(words=known.words, at=known.time))
        longest = self._prove_longest() if scope.longest else None
        if scope.candidates and self._has_time_for("candidates"):
            self._prove_candidates(offered[: scope.candidates], has_longest=longest is not None)
        first_steps = None
        if scope.first_steps and self._work.steps >= 3 * FEWEST_STEPS and self._has_time_for("first_steps"):
            first_steps = self._prove_first_steps()
        return self._proof("done", scope, known, seconds, longest=longest, first_steps=first_steps)

    def _proof(
        self,
        state: Literal["done", "remembered", "skipped"],
        scope: ProofPlan,
        known: RememberedProof | None,
        run_seconds: float,
        *,
        longest: LongestExamples | None = None,
        first_steps: FirstSteps | None = None,
    ) -> Proof:
        planned = msgspec.to_builtins(self._plan.settings)
        settings = {
            name: value for name, value in msgspec.to_builtins(self._settings).items() if value != planned[name]
        }
        return Proof(
            state=state,
            reason=scope.reason,
            run_seconds=round(run_seconds, 1),
            budget_seconds=round(scope.budget_seconds, 1),
            seconds=round(time.monotonic() - self._begun, 1) if state == "done" else 0.0,
            fingerprint=fingerprint_of(),
            remembered_words=known.words if known else "",
            remembered_at=known.time if known else None,
            longest=longest,
            parity=tuple(self._parity),
            candidates=self._candidates,
            first_steps=first_steps,
            not_proven=tuple(dict.fromkeys(self._not_proven)),
            settings=settings,
            variables=self._variables,
            choices=self._choices,
        )

    def _scope(self, seconds: float, offered: tuple[Changes, ...], known: RememberedProof | None) -> ProofPlan:
        step_seconds = max(0.0, seconds - start_seconds(self._processes)) / max(1, self._work.steps)
        one = self._of_one_step(self._amounts.longest_tokens * max(2, self._processes))
        longest_seconds = self._rough_seconds(one) - start_seconds(self._processes)
        costs = proof_costs(self._work, self._plan.model, self._processes, step_seconds, longest_seconds)
        scope = choose_proof(self._request.prove, seconds, len(offered), costs)
        if self._is_of_many_machines:
            scope = replace(scope, first_steps=False)
        if self._is_of_many_machines and self._settings.shard:
            scope = replace(scope, longest=False, reason="sharded weights")
        if self._processes > 1 or self._is_of_many_machines:
            scope = replace(scope, candidates=0)
        if known:
            scope = replace(scope, longest=scope.longest and not known.has_longest, candidates=0)
        return scope

    def _estimate(self, known: RememberedProof | None) -> float:
        if known and known.tokens_per_second:
            tokens = self._work.steps * self._work.step_tokens
            return start_seconds(self._processes) + tokens / known.tokens_per_second
        return self._rough_seconds(self._work)

    def _rough_seconds(self, work: Work, device: str | None = None) -> float:
        plan = self._plan
        return rough_seconds(
            work, plan.model, self._machine, device or self._settings.device, plan.task, self._processes
        )

    def _of_one_step(self, tokens: int) -> Work:
        """A small run of one step with this many tokens."""
        work = replace(self._work, steps=1, step_tokens=float(tokens), evaluations=1, evaluation_tokens=tokens)
        return replace(work, report_tokens=0)

    @property
    def _left_seconds(self) -> float:
        return max(0.0, self._limit_seconds - (time.monotonic() - self._begun))

    @property
    def _processes(self) -> int:
        return self._settings.processes

    @property
    def _is_of_many_machines(self) -> bool:
        """Whether other machines train too: then only the longest examples are proven, with this machine's part."""
        return nodes_of(self._request) > 1

    def _offered(self) -> tuple[Changes, ...]:
        """The candidates that change nothing a person has set."""
        found = candidates_for(self._settings, self._machine, self._work.step_tokens)
        return tuple(
            candidate for candidate in found if all(getattr(self._request, name) is None for name in candidate)
        )

    def _skip(self, scope: ProofPlan, known: RememberedProof | None, seconds: float) -> Proof:
        scope = replace(scope, reason=scope.reason or "run too short")
        proof = self._proof("remembered" if known else "skipped", scope, known, seconds)
        if known:
            self._tell(RecalledProof(words=known.words, at=known.time))
        else:
            self._tell(SkippedProof(reason=proof.reason, run_seconds=seconds, budget_seconds=proof.budget_seconds))
        return proof

    def _has_time_for(self, part: ProofPart) -> bool:
        """Whether the limit is not reached yet; the part is noted as not proven otherwise."""
        if self._left_seconds > 0:
            return True
        self._cut(part)
        return False

    def _cut(self, part: ProofPart) -> None:
        """A part that would take longer than the proof may."""
        self._not_proven.append(part)
        self._tell(CutProof(part=part, limit_seconds=self._limit_seconds))

    # The longest examples

    def _prove_longest(self) -> LongestExamples | None:
        count = self._enough_for_a_micro_batch()
        prepared = write_longest(Path(self._settings.prepared), self._folder / "longest-examples", count)
        device = self._settings.device
        name = "longest" if device == self._plan.settings.device else f"longest-{device}"
        found = self._small_run(name, prepared, self._settings)
        if found is None:
            self._cut("longest")
            return None
        self._settings = replace(
            self._settings, **{name: value for name, value in found.changes.items() if not name.isupper()}
        )
        self._variables |= {name: str(value) for name, value in found.changes.items() if name.isupper()}
        longest = LongestExamples(
            examples=count,
            longest_tokens=self._amounts.longest_tokens,
            is_one_machine=self._is_of_many_machines,
            loss=found.loss,
            changes=found.changes,
            peak_bytes=found.peak_bytes,
            seconds=found.seconds,
        )
        self._tell(longest)
        if self._processes > 1 and not self._settings.shard:
            self._prove_parity(prepared, count, found, "longest-alone", self._alone(), "one process")
        if self._settings.device != "cpu" and not self._settings.load_in_4bit:  # only MLX has 4 bits
            reference = replace(self._alone(), device="cpu", precision="fp32")
            self._prove_parity(prepared, count, found, "longest-cpu", reference, "cpu")
        return longest

    def _alone(self) -> EngineSettings:
        """The same settings for one process, where there are several."""
        threads = self._processes * (self._settings.threads or 1)
        alone = replace(self._settings, processes=1, shard=False, threads=threads)
        return alone if self._processes > 1 else self._settings

    def _prove_parity(
        self,
        prepared: Path,
        count: int,
        found: SmallRun,
        name: str,
        reference: EngineSettings,
        against: Literal["one process", "cpu"],
    ) -> None:
        """The same small run computed in another way must give the same loss; if not, the run trains in that way.

        A large model takes minutes on a CPU. There, the test step of the machine's probe stands for it: a small model
        with the same layers, whose loss and gradients the device must compute as the CPU does.
        """
        part: Literal["processes", "device"] = "processes" if against == "one process" else "device"
        tokens = count * self._amounts.longest_tokens
        load = self._plan.model.parameters / 1e8
        if load + self._rough_seconds(self._of_one_step(tokens), reference.device) > self._left_seconds:
            self._cut(part)
            return
        other = self._small_run(name, prepared, reference)
        if other is None:
            self._cut(part)
            return
        here, there = found.loss, other.loss
        if here is None or there is None:
            return
        off, agrees = compare_losses(there, here, self._settings.precision)
        parity = LossParity(
            against=against,
            device=self._settings.device,
            processes=self._processes,
            loss=here,
            reference_loss=there,
            off=off,
            agrees=agrees,
        )
        self._parity.append(parity)
        self._tell(parity)
        if not agrees:
            self._settings = reference

    def _enough_for_a_micro_batch(self) -> int:
        """The two longest examples; if that is cheap, enough to fill the largest micro-batch of the run."""
        tokens = min(self._settings.micro_tokens, self._amounts.largest_step_tokens)
        least = max(2, self._processes)  # each process has one at least
        each = -(-tokens // max(1, self._amounts.longest_tokens)) + 1
        count = max(least, min(self._settings.batch_size, self._processes * each))
        seconds = self._rough_seconds(replace(self._of_one_step(tokens), report_tokens=tokens))
        return count if seconds < _CHEAP_SECONDS or self._request.prove == "always" else least

    def _small_run(self, name: str, prepared: Path, settings: EngineSettings) -> SmallRun | None:
        """One step on few examples, an evaluation and a checkpoint; it learns next to nothing."""
        folder = self._folder / name
        small = replace(
            settings, prepared=str(prepared), run=str(folder), max_steps=1, lr=1e-8, keep="last", export=False
        )
        words = f"proving with the {name} examples"
        return self._children.small(folder, small, self._variables, words, self._left_seconds)

    # Candidates

    def _prove_candidates(self, offered: tuple[Changes, ...], *, has_longest: bool) -> None:
        folder = self._folder / "candidates"
        folder.mkdir(parents=True, exist_ok=True)
        tried = list(offered)
        not_eligible: list[int] = []
        if self._left_seconds > _COMPARE_FROM_SECONDS and self._settings.device == "cpu":
            not_eligible.append(len(tried))
            tried.append(COMPARISON)
        write_record(folder, TrialRequest(candidates=tuple(tried), seconds_each=SECONDS_EACH))
        words = f"timing {plural(len(tried), 'way')} to compute the same step"
        self._children.time_candidates(folder, self._settings, self._variables, words, self._left_seconds)
        timed = [event for event in read_events(folder / EVENTS) if isinstance(event, CandidateTimed)]
        if len(timed) < len(tried):
            self._cut("candidates")
        self._candidates = judge(self._settings, timed, not_eligible)
        if not self._candidates:
            self._tell(SkippedProof(reason="no candidate timed"))
            return
        planned, best = self._settings, _chosen(self._candidates)
        self._settings = replace(planned, **best.changes)
        if self._settings.device != planned.device and not self._is_proven_there():
            self._settings = planned
            elsewhere = [number for number, one in enumerate(self._candidates) if "device" in one.changes]
            self._candidates = judge(planned, timed, [*not_eligible, *elsewhere])
            best = _chosen(self._candidates)
            self._settings = replace(planned, **best.changes)
        for name, value in best.changes.items():
            self._choices[name] = Choice(value, f"the fastest here: {best.words}")
        for one in sorted(self._candidates, key=lambda one: -one.tokens_per_second):
            self._tell(one)
        remember_proof(planned, self._plan.model, self._candidates, has_longest=has_longest)

    def _is_proven_there(self) -> bool:
        """Whether the longest examples agree with the CPU on the device that was the fastest."""
        device = self._settings.device
        return self._prove_longest() is not None and self._settings.device == device

    # The first steps

    def _prove_first_steps(self) -> FirstSteps | None:
        often = replace(self._settings, save_seconds=min(_SAVE_SECONDS, self._settings.save_seconds or 1.0))
        wanted = steps_wanted(self._work.steps)
        found = self._children.first_steps(
            self._folder / "first-steps", often, self._variables, wanted, self._left_seconds
        )
        if found.state == "cut":
            self._cut("first_steps")
            return None
        if found.state != "killed":
            self._tell(found)
        return found

    def _tell(self, result: ProofResult) -> None:
        self._report(ProofReported(result=result))


def _chosen(candidates: tuple[TimedCandidate, ...]) -> TimedCandidate:
    return next(one for one in candidates if one.is_chosen)
