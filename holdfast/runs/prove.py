"""Proves a run before time is spent on it: the longest examples, candidates, first steps with a kill.

    longest      the longest examples through a whole small run: step, evaluate, save, export; on a GPU the
                 CPU must agree. It is supervised like any run, so a plan that crashes takes a fallback here.
    candidates   other ways to compute the same, timed; the fastest that agrees wins.
    first steps  the run's own first steps: speed and memory are measured, then the process is killed; the first attempt
                 continues from the checkpoint and must repeat the steps bit for bit.

Reads: plan.json, prepared/. Leaves: proof.json, proof/.
"""

import shutil
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import msgspec

from holdfast.core.event_log import EventSink, read_events
from holdfast.core.events import (
    AttemptEnded,
    CandidateTimed,
    Event,
    PhaseChanged,
    Progressed,
    ProofPartFailed,
    ProofReported,
    StageStarted,
    Working,
)
from holdfast.core.plan import Choice
from holdfast.core.records import (
    Changes,
    FirstSteps,
    LongestExamples,
    LossParity,
    Proof,
    ProofResult,
    RecalledProof,
    SkippedProof,
    TimedCandidate,
    TrialRequest,
    write_record,
)
from holdfast.core.runfolder import EVENTS
from holdfast.core.settings import EngineSettings, TrainRequest, nodes_of
from holdfast.core.text import plural
from holdfast.data.amounts import amounts_of
from holdfast.data.subset import write_longest
from holdfast.planning.proving import (
    COMPARISON,
    SECONDS_EACH,
    ProofPlan,
    Work,
    candidates_for,
    choose_proof,
    compare_losses,
    judge,
    rough_seconds,
    start_seconds,
)
from holdfast.runs.engine_child import ENGINE, TRIAL, EngineChildren
from holdfast.runs.forecast import work_of, write_rough_forecast
from holdfast.runs.prepare_run import PreparedRun
from holdfast.runs.proof_runs import (
    FEWEST_STEPS,
    SmallRun,
    describe_first_steps,
    kill_after_steps,
    run_small,
    steps_wanted,
)
from holdfast.runs.run_memory import RememberedProof, fingerprint_of, recall_proof, remember_proof
from holdfast.supervisor.attempt import StopRequest, run_attempt
from holdfast.supervisor.budgets import Budgets
from holdfast.supervisor.ending import end_tree

_COMPARE_FROM_SECONDS = 30.0  # of proof, from which the usual advice is timed too, for comparison
_SAVE_SECONDS = 3.0
_CHEAP_SECONDS = 15.0


def prove(run: Path, request: TrainRequest, prepared: PreparedRun, report: EventSink, children: EngineChildren) -> None:
    """Prove what is worth proving, and write what was found into proof.json."""
    _Proving(run, request, prepared, report, children).prove()


class _Proving:
    """The proof of one run. What a part finds out goes into the settings of later parts, and into proof.json."""

    def __init__(
        self, run: Path, request: TrainRequest, prepared: PreparedRun, report: EventSink, children: EngineChildren
    ):
        self._run, self._request, self._plan, self._machine = run, request, prepared.plan, prepared.machine
        self._report, self._children = report, children
        self._folder = run / "proof"
        self._settings = self._plan.settings  # as proven so far
        self._variables: dict[str, str] = {}  # of the environment, that the longest examples were found to need
        self._amounts = amounts_of(Path(self._settings.prepared), self._settings.batch_size)
        self._work = work_of(self._settings, self._amounts)
        self._parity: list[LossParity] = []
        self._candidates: tuple[TimedCandidate, ...] = ()
        self._choices: dict[str, Choice[Any]] = {}

    def prove(self) -> None:
        """Do the parts that are worth their time."""
        begun = time.monotonic()
        known = recall_proof(self._settings, self._plan.model) if self._request.prove == "auto" else None
        seconds = self._estimate(known)
        write_rough_forecast(self._run, self._plan, seconds, from_earlier_run=bool(known and known.tokens_per_second))
        offered = self._offered()
        scope = self._scope(seconds, len(offered), known)
        if known:
            self._settings, self._candidates = replace(self._settings, **known.changes), known.candidates
        shutil.rmtree(self._folder, ignore_errors=True)
        if not (scope.longest or scope.candidates or scope.first_steps):
            self._skip(scope, known, seconds)
            return
        self._report(StageStarted(stage="prove"))
        if known and known.candidates:
            self._tell(RecalledProof(words=known.words, at=known.time))
        longest = self._prove_longest() if scope.longest else None
        if scope.candidates:
            self._prove_candidates(offered, scope)
        first_steps = None
        if scope.first_steps and self._work.steps >= 3 * FEWEST_STEPS:
            first_steps = self._prove_first_steps()
        proof = self._proof(
            "done", scope, known, seconds, longest=longest, first_steps=first_steps, took=time.monotonic() - begun
        )
        write_record(self._run, proof)

    def _proof(
        self,
        state: Literal["done", "remembered", "skipped"],
        scope: ProofPlan,
        known: RememberedProof | None,
        run_seconds: float,
        *,
        longest: LongestExamples | None = None,
        first_steps: FirstSteps | None = None,
        took: float = 0.0,
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
            seconds=round(took, 1),
            fingerprint=fingerprint_of(),
            remembered_words=known.words if known else "",
            remembered_at=known.time if known else None,
            longest=longest,
            parity=tuple(self._parity),
            candidates=self._candidates,
            first_steps=first_steps,
            settings=settings,
            variables=self._variables,
            choices=self._choices,
        )

    def _scope(self, seconds: float, offered: int, known: RememberedProof | None) -> ProofPlan:
        scope = choose_proof(self._request.prove, seconds, offered, start_seconds(self._processes))
        if self._is_of_many_machines:
            scope = replace(scope, first_steps=False)
        if self._is_of_many_machines and self._settings.shard:
            scope = replace(scope, longest=False, reason="sharded weights")
        scope = replace(scope, candidates=scope.candidates and self._processes == 1 and not self._is_of_many_machines)
        if known:
            scope = replace(scope, longest=scope.longest and not known.has_longest, candidates=False)
        return scope

    def _estimate(self, known: RememberedProof | None) -> float:
        if known and known.tokens_per_second:
            tokens = self._work.steps * self._work.step_tokens
            return start_seconds(self._processes) + tokens / known.tokens_per_second
        return self._rough_seconds(self._work)

    def _rough_seconds(self, work: Work) -> float:
        plan = self._plan
        return rough_seconds(work, plan.model, self._machine, self._settings.device, plan.task, self._processes)

    @property
    def _processes(self) -> int:
        return self._settings.processes

    @property
    def _is_of_many_machines(self) -> bool:
        """Whether other machines train too: then only the longest examples are proven, with this machine's part."""
        return nodes_of(self._request) > 1

    def _offered(self) -> tuple[Changes, ...]:
        """The candidates that change nothing a person has set."""
        request = self._request
        found = candidates_for(self._settings, self._machine, self._work.step_tokens)
        given = {"threads": request.threads, "precision": request.precision, "micro_tokens": request.micro_tokens}
        fixed = {name for name, value in given.items() if value is not None}
        return tuple(candidate for candidate in found if not fixed & candidate.keys())

    def _skip(self, scope: ProofPlan, known: RememberedProof | None, seconds: float) -> None:
        scope = replace(scope, reason=scope.reason or "run too short")
        proof = self._proof("remembered" if known else "skipped", scope, known, seconds)
        write_record(self._run, proof)
        if known:
            self._tell(RecalledProof(words=known.words, at=known.time))
        else:
            self._tell(SkippedProof(reason=proof.reason, run_seconds=seconds, budget_seconds=scope.budget_seconds))

    # The longest examples

    def _prove_longest(self) -> LongestExamples:
        count = self._enough_for_a_micro_batch()
        prepared = write_longest(Path(self._settings.prepared), self._folder / "longest-examples", count)
        found = self._small_run("longest", prepared, self._settings)
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
            self._prove_parity(prepared, found, "longest-alone", self._alone(), "one process")
        if self._settings.device != "cpu":
            reference = replace(self._alone(), device="cpu", precision="fp32")
            self._prove_parity(prepared, found, "longest-cpu", reference, "cpu")
        return longest

    def _alone(self) -> EngineSettings:
        """The same settings for one process, where there are several."""
        threads = self._processes * (self._settings.threads or 1)
        alone = replace(self._settings, processes=1, shard=False, threads=threads)
        return alone if self._processes > 1 else self._settings

    def _prove_parity(
        self,
        prepared: Path,
        found: SmallRun,
        name: str,
        reference: EngineSettings,
        against: Literal["one process", "cpu"],
    ) -> None:
        """The same small run computed in another way must give the same loss; if not, the run trains in that way."""
        here, there = found.loss, self._small_run(name, prepared, reference).loss
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
        work = replace(self._work, steps=1, step_tokens=float(tokens), evaluations=1, evaluation_tokens=tokens)
        seconds = self._rough_seconds(replace(work, report_tokens=tokens))
        return count if seconds < _CHEAP_SECONDS or self._request.prove == "always" else least

    def _small_run(self, name: str, prepared: Path, settings: EngineSettings) -> SmallRun:
        """A complete run on few examples. Another child always follows, so a spare is prepared meanwhile."""
        show = self._shown_as(f"proving with the {name} examples")

        def hear(event: Event) -> None:
            if isinstance(event, PhaseChanged) and event.phase == "load":
                self._children.warm_up()  # nothing is timed here
            show(event)

        return run_small(self._folder / name, prepared, settings, self._variables, self._children, hear)

    # Candidates

    def _prove_candidates(self, offered: tuple[Changes, ...], scope: ProofPlan) -> None:
        folder = self._folder / "candidates"
        folder.mkdir(parents=True, exist_ok=True)
        tried = list(offered)
        not_eligible: list[int] = []
        if scope.budget_seconds > _COMPARE_FROM_SECONDS and self._settings.device == "cpu":
            not_eligible.append(len(tried))
            tried.append(COMPARISON)
        write_record(folder, TrialRequest(candidates=tuple(tried), seconds_each=SECONDS_EACH))
        self._attempt(folder, TRIAL, f"timing {plural(len(tried), 'way')} to compute the same")
        timed = [event for event in read_events(folder / EVENTS) if isinstance(event, CandidateTimed)]
        self._candidates = judge(self._settings, timed, not_eligible)
        if not self._candidates:
            self._tell(SkippedProof(reason="no candidate timed"))
            return
        best = next(one for one in self._candidates if one.is_chosen)
        planned, self._settings = self._settings, replace(self._settings, **best.changes)
        for name, value in best.changes.items():
            self._choices[name] = Choice(value, f"the fastest here: {best.words}")
        for one in sorted(self._candidates, key=lambda one: -one.tokens_per_second):
            self._tell(one)
        remember_proof(planned, self._plan.model, self._candidates, has_longest=scope.longest)

    # The first steps

    def _prove_first_steps(self) -> FirstSteps:
        folder, wanted = self._folder / "first-steps", steps_wanted(self._work.steps)
        often = {"save_seconds": min(_SAVE_SECONDS, self._settings.save_seconds or 1.0)}

        def run_child() -> str:
            return self._attempt(folder, ENGINE, "the run's own first steps", often, wanted)

        if kill_after_steps(folder, wanted, run_child) == "finished":
            finished = FirstSteps(state="finished")
            self._tell(finished)
            return finished
        found = describe_first_steps(folder)
        if found.state == "failed":
            self._tell(found)
        return found

    # Children

    def _attempt(
        self,
        folder: Path,
        module: str,
        words: str,
        changes: Changes | None = None,
        total: int = 0,
    ) -> str:
        """Run one child to its end and return how it ended; no process of it is left."""
        folder.mkdir(parents=True, exist_ok=True)
        launch = self._children.launch(folder, self._settings, {**self._variables, **(changes or {})}, module)
        budgets = Budgets(step_timeout_seconds=self._request.step_timeout)
        try:
            outcome, _ = run_attempt(launch, budgets, self._shown_as(words, total), StopRequest())
            return outcome.outcome
        finally:
            end_tree(folder, None, 0.0)

    def _shown_as(self, words: str, total: int = 0) -> EventSink:
        """Show how far a child of the proof is; its own events are not those of the run."""

        def hear(event: Event) -> None:
            if isinstance(event, Progressed):
                steps = total or event.steps
                what = f"{words}: {event.phase or 'start'}"
                self._report(Working(what=what, done=min(event.step, steps), total=steps or None))
            elif isinstance(event, AttemptEnded):
                self._report(ProofPartFailed(part=words, outcome=event.outcome, cause=event.cause))

        return hear

    def _tell(self, result: ProofResult) -> None:
        self._report(ProofReported(result=result))
