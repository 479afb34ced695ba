"""Tries a run in small before time is spent on it: the longest examples, candidates, first steps with a kill.

    longest      the longest examples through a whole small run: step, evaluate, save, export; on a card or on Apple's
                 GPU the CPU must agree. It is supervised like any run, so a plan that crashes steps down here, cheaply.
    candidates   other ways to compute the same, timed; the fastest that agrees wins.
    first steps  the run's own first steps: speed and memory are measured, then the process is killed; the first attempt
                 goes on from the checkpoint and must repeat the steps bit for bit.

Reads: plan.json, prepared/. Leaves: proof/, and plan.json with what was measured.
"""

import shutil
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from holdfast.core.artifacts import read_artifact, to_plain, write_artifact
from holdfast.core.old_events import read_events
from holdfast.core.request import TrainRequest, nodes_of
from holdfast.core.runfolder import EVENTS, PLAN
from holdfast.core.text import plural, processes_words
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
from holdfast.runs.first_steps import FEWEST_STEPS, describe_first_steps, kill_after_steps, steps_wanted
from holdfast.runs.memory import fingerprint_of
from holdfast.runs.proven import Proven, recall, remember
from holdfast.runs.small_run import run_small
from holdfast.runs.walk import Story, Walked
from holdfast.runs.work import work_of
from holdfast.supervisor.attempt import StopRequest, run_attempt
from holdfast.supervisor.budgets import Budgets
from holdfast.supervisor.ending import end_tree

_COMPARE_FROM_SECONDS = 30.0  # of proof, from which the folklore's settings are timed too
_SAVE_SECONDS = 3.0
_CHEAP_SECONDS = 15.0


def prove(run: Path, request: TrainRequest, walked: Walked, story: Story, children: EngineChildren) -> None:
    """Prove what is worth proving, and write what was found into plan.json."""
    _Proving(run, request, walked, story, children).prove()


class _Proving:
    """The proof of one run."""

    def __init__(self, run: Path, request: TrainRequest, walked: Walked, story: Story, children: EngineChildren):
        self._run, self._request, self._walked, self._story = run, request, walked, story
        self._children = children
        self._folder = run / "proof"
        self._plan: dict[str, Any] = read_artifact(run / PLAN)
        self._settings: dict[str, Any] = dict(self._plan["settings"])
        self._variables: dict[str, Any] = {}  # of the environment, that the longest examples were found to need
        self._amounts = amounts_of(Path(self._settings["prepared"]), int(self._settings["batch_size"]))
        self._work = work_of(self._settings, self._amounts)
        self._begun = time.monotonic()

    def prove(self) -> None:
        """Do the parts that are worth their time."""
        known = recall(self._settings, self._plan["model"]) if self._request.prove == "auto" else None
        seconds = self._reckoned(known)
        self._plan["forecast"] = {**(self._plan.get("forecast") or {}), "rough_seconds": round(seconds, 1)}
        if known and known.tokens_per_second:
            self._plan["forecast"]["because"] = "reckoned from the speed of an earlier run here"
        offered = self._candidates()
        start = (known.start_seconds if known else None) or start_seconds(self._processes)
        proof = choose_proof(self._request.prove, seconds, len(offered), start)
        if self._is_of_many_machines:
            proof = replace(proof, first_steps=False)
        if self._is_of_many_machines and self._settings.get("shard"):
            proof = replace(proof, longest=False, because="the weights fit only into all machines together")
        proof = replace(proof, candidates=proof.candidates and self._processes == 1 and not self._is_of_many_machines)
        if known:
            proof = replace(proof, longest=proof.longest and not known.longest, candidates=False)
            self._settings |= known.candidate
            self._plan["measured"] = list(known.measured)
        shutil.rmtree(self._folder, ignore_errors=True)
        if not (proof.longest or proof.candidates or proof.first_steps):
            self._skip(proof, known)
            return
        self._story.tell("phase", phase="prove")
        if known and known.measured:
            self._tell("remembered", f"settings proven on this machine {_ago(known.time)}: {known.words}")
        if proof.longest:
            self._prove_longest()
        if proof.candidates:
            self._prove_candidates(offered, proof)
        self._plan |= {"settings": self._settings, "variables": self._variables}
        state: dict[str, object] = {"state": "done", "because": proof.because}
        if proof.first_steps and self._work.steps >= 3 * FEWEST_STEPS:
            state["first_steps"] = self._prove_first_steps()
        state["machine"] = fingerprint_of()
        state["seconds"] = round(time.monotonic() - self._begun, 1)
        self._plan["proof"] = {**(self._plan.get("proof") or {}), **state}
        write_artifact(self._run, PLAN, self._plan)

    def _reckoned(self, known: Proven | None) -> float:
        if known and known.tokens_per_second:
            tokens = self._work.steps * self._work.step_tokens
            return (known.start_seconds or start_seconds(self._processes)) + tokens / known.tokens_per_second
        return self._rough_seconds(self._work)

    def _rough_seconds(self, work: Work) -> float:
        plan, device = self._walked.plan, str(self._settings["device"])
        return rough_seconds(work, plan.model, self._walked.machine, device, plan.task, self._processes)

    @property
    def _processes(self) -> int:
        return int(self._settings.get("processes") or 1)

    @property
    def _is_of_many_machines(self) -> bool:
        """Whether others train, too: then only this one's part is proven, that the longest examples go through."""
        return nodes_of(self._request) > 1

    def _candidates(self) -> tuple[dict[str, object], ...]:
        asked = self._request
        found = candidates_for(self._settings, self._walked.machine, self._work.step_tokens)
        given = {"threads": asked.threads, "precision": asked.precision, "micro_tokens": asked.micro_tokens}
        fixed = {name for name, value in given.items() if value is not None}
        return tuple(candidate for candidate in found if not fixed & candidate.keys())

    def _skip(self, proof: ProofPlan, known: Proven | None) -> None:
        because = f"proven here {_ago(known.time)}: {known.words}" if known else proof.because
        because = because or "the run is shorter than its proof"
        state = "remembered" if known else "skipped"
        self._plan |= {
            "settings": self._settings,
            "proof": {"state": state, "because": because, "machine": fingerprint_of()},
        }
        write_artifact(self._run, PLAN, self._plan)
        self._tell(state, because if known else f"skipped: {because}")

    # Rung 2

    def _prove_longest(self) -> None:
        count = self._enough_for_a_micro_batch()
        prepared = write_longest(Path(self._settings["prepared"]), self._folder / "longest-examples", count)
        begun = time.monotonic()
        found = self._small_run("longest", prepared, {})
        changes = found["changes"]
        self._settings |= {name: value for name, value in changes.items() if not name.isupper()}
        self._variables |= {name: value for name, value in changes.items() if name.isupper()}
        kept = "" if not changes else f"; it needed {', '.join(f'{name} {value}' for name, value in changes.items())}"
        words = (
            f"the {count} longest examples ({self._amounts.longest_tokens:,} tokens the longest): step, evaluate, save"
        )
        where = " on this machine alone" if self._is_of_many_machines else ""
        self._tell("done", f"{words}, export in {time.monotonic() - begun:.0f} s{where}{kept}")
        self._plan["proof"] = {"longest": {"examples": count, **found}}
        if self._processes > 1 and not self._settings.get("shard"):
            self._prove_parity(prepared, found, "longest-alone", self._alone(), "one process")
        if self._settings["device"] != "cpu":
            reference = {**self._alone(), "device": "cpu", "precision": "fp32"}
            self._prove_parity(prepared, found, "longest-cpu", reference, "the CPU")

    def _alone(self) -> dict[str, object]:
        """The same settings for one process, where there are several."""
        count, threads = self._processes, int(self._settings["threads"] or 1)
        return {"processes": 1, "shard": False, "threads": count * threads} if count > 1 else {}

    def _prove_parity(
        self, prepared: Path, found: Mapping[str, Any], name: str, reference: Mapping[str, object], whose: str
    ) -> None:
        """The same small run done otherwise must give the same loss; otherwise that other way is taken."""
        here, there = found.get("loss"), self._small_run(name, prepared, reference).get("loss")
        if here is None or there is None:
            return
        is_alone = self._processes > 1 and "device" not in reference
        who = processes_words(self._processes) if is_alone else str(self._settings["device"])
        off, agrees = compare_losses(there, here, str(self._settings["precision"]))
        key = "processes_parity" if is_alone else "parity"
        self._plan["proof"][key] = {"device": here, "alone" if is_alone else "cpu": there, "off": off}
        verb = "compute" if is_alone else "computes"
        if not agrees:
            self._settings |= reference
            self._tell("failed", f"{who} {verb} another loss than {whose} ({here:.4g}, {there:.4g}); {whose} trains")
        else:
            self._tell("done", f"{who} {verb} {_of_whom(whose)} loss ({here:.4g}, {there:.4g})")

    def _enough_for_a_micro_batch(self) -> int:
        """The two longest; where that is cheap, enough of them to fill the largest micro-batch of the run."""
        tokens = min(int(self._settings["micro_tokens"]), self._amounts.largest_step_tokens)
        least = max(2, self._processes)  # each process has one at least
        each = -(-tokens // max(1, self._amounts.longest_tokens)) + 1
        count = max(least, min(int(self._settings["batch_size"]), self._processes * each))
        work = replace(self._work, steps=1, step_tokens=float(tokens), evaluations=1, evaluation_tokens=tokens)
        seconds = self._rough_seconds(replace(work, report_tokens=tokens))
        return count if seconds < _CHEAP_SECONDS or self._request.prove == "always" else least

    def _small_run(self, name: str, prepared: Path, changes: Mapping[str, object]) -> dict[str, Any]:
        """A whole run on few examples; another child follows in any case, so a spare is made beside it."""
        settings = {**self._settings, **changes}
        adapter = self._adapter(f"proving with the {name} examples")

        def on_event(event: str, details: Mapping[str, object]) -> None:
            if event == "phase" and details.get("phase") == "load":
                self._children.warm_up()  # nothing is timed here
            adapter(event, details)

        return run_small(self._folder / name, prepared, settings, self._variables, self._children, on_event)

    # Candidates

    def _prove_candidates(self, offered: tuple[dict[str, object], ...], proof: ProofPlan) -> None:
        folder = self._folder / "candidates"
        folder.mkdir(parents=True, exist_ok=True)
        tried: list[dict[str, object]] = list(offered)
        not_eligible: list[int] = []
        if proof.budget_seconds > _COMPARE_FROM_SECONDS and self._settings["device"] == "cpu":
            not_eligible.append(len(tried))
            tried.append(dict(COMPARISON))
        write_artifact(folder, "candidates.json", {"candidates": tried, "seconds_each": SECONDS_EACH})
        self._attempt(folder, TRIAL, f"timing {plural(len(tried), 'way')} to compute the same")
        told = [event for event in read_events(folder / EVENTS) if event["event"] == "candidate"]
        measured = judge(self._settings, told, not_eligible)
        if not measured:
            self._tell("failed", "no candidate could be timed; the plan stays as it is")
            return
        best = next(one for one in measured if one.is_chosen)
        self._settings |= best.candidate
        self._plan["measured"] = to_plain(measured)
        for name, value in best.candidate.items():
            self._plan["choices"][name] = {"value": value, "because": f"the fastest here: {best.words}"}
        for one in sorted(measured, key=lambda one: -one.tokens_per_second):
            mark = "chosen" if one.is_chosen else one.because if not one.agrees else ""
            speed = f"{one.samples_per_second:,.1f} examples/s, {one.tokens_per_second:,.0f} tokens/s"
            self._tell("done", f"{one.words}: {speed}" + (f" ({mark})" if mark else ""))
        remember(self._settings, self._plan["model"], best, self._plan["measured"], has_longest=proof.longest)

    # Rung 100

    def _prove_first_steps(self) -> dict[str, object]:
        folder, wanted = self._folder / "first-steps", steps_wanted(self._work.steps)
        often = {"save_seconds": min(_SAVE_SECONDS, float(self._settings["save_seconds"]) or 1.0)}
        words = "the run's own first steps"
        how = kill_after_steps(folder, wanted, lambda: self._attempt(folder, ENGINE, words, often, whole=wanted))
        if how == "finished":
            self._tell("done", "all steps were done before the proof could kill the process; the run is that short")
            return {"state": "finished"}
        found = describe_first_steps(folder)
        if found["state"] == "failed":
            self._tell("failed", "the first steps ended before they could be measured; the attempts will tell more")
        return found

    # Children

    def _attempt(
        self, folder: Path, module: str, words: str, changes: Mapping[str, object] | None = None, whole: int = 0
    ) -> str:
        """Run one child to its end and say how it ended; whatever becomes of it, nothing of it is left."""
        folder.mkdir(parents=True, exist_ok=True)
        launch = self._children.launch(folder, self._settings, {**self._variables, **(changes or {})}, module)
        budgets = Budgets(step_timeout_seconds=self._request.step_timeout)
        try:
            outcome, _ = run_attempt(launch, budgets, self._adapter(words, whole), StopRequest())
            return outcome.outcome
        finally:
            end_tree(folder, None, 0.0)

    def _adapter(self, words: str, whole: int = 0) -> Any:
        def on_event(event: str, details: Mapping[str, object]) -> None:
            if event == "progress":
                step, steps = int(str(details.get("step") or 0)), whole or int(str(details.get("steps") or 0))
                self._story.working(f"{words}: {details.get('phase') or 'start'}", min(step, steps), steps or None)
            elif event == "ended" and details.get("outcome") not in ("finished", "stopped") and "first" not in words:
                self._story.tell("note", words=f"{words}: {details.get('sentence')}")

        return on_event

    def _tell(self, state: str, words: str) -> None:
        self._story.tell("proof", state=state, words=words)


def _of_whom(whose: str) -> str:
    return f"{whose}'" if whose.endswith("s") else f"{whose}'s"


def _ago(at: float) -> str:
    days = (time.time() - at) / 86_400
    return "today" if days < 1 else f"{days:.0f} days ago"
