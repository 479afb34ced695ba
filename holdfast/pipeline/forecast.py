"""Forecasts how long a run takes and how much memory it needs, and checks that a killed run repeats its steps.

There are up to three forecasts, each replacing the one before: from the size of the model when the run is planned, from
the first steps that the proof has timed, and from the steps of an attempt. Leaves: forecast.json, resume_check.json.
"""

import contextlib
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from holdfast.core.artifacts import read_artifact
from holdfast.core.event_log import EventSink, EventTail, read_events
from holdfast.core.events import (
    AttemptStarted,
    CheckpointSaved,
    EpochStarted,
    Evaluated,
    Event,
    ForecastMade,
    Progressed,
    ProofReported,
    StepDone,
    TrainingFinished,
    TrainingStarted,
)
from holdfast.core.facts import ModelFacts
from holdfast.core.records import Forecast, Proof, ResumeCheck, RunPlan, read_record, write_record
from holdfast.core.runfolder import EVENTS, SETTINGS, attempt_folder
from holdfast.core.settings import EngineSettings
from holdfast.data.amounts import Amounts
from holdfast.pipeline.memory_model import reading_bytes
from holdfast.pipeline.proof_budget import Work, answer_seconds, forecast_seconds
from holdfast.pipeline.train_plan import proven_settings

# As in engine.mining and engine.tasks.causal, which import torch; a test compares them.
MINED_FROM_EPOCH, MINED_EACH, ANSWERS = 1, 1, 3

_FEWEST_STEPS = 8
_FEWEST_FREE_STEPS = 4  # steps during which nothing was saved
_LEAST_SECONDS = 5.0
_SHARE = 0.03  # of the steps, after which a forecast is made
_ROOM = 1.03  # memory grows a little with the longest texts, which may come later
_NEW_SHARE = 0.8  # of what an evaluation needs and training did not
_LOOK_SECONDS = 0.5


def work_of(settings: EngineSettings, amounts: Amounts) -> Work:
    """How much there is to compute."""
    per_epoch = max(1, -(-amounts.examples // settings.batch_size))
    steps = settings.max_steps or settings.epochs * per_epoch
    every = settings.eval_steps or per_epoch
    passage_tokens = settings.batch_size * amounts.corpus_mean_tokens
    mining = settings.options.get("mining")
    first = int((mining or {}).get("from_epoch", MINED_FROM_EPOCH)) * per_epoch
    late = max(0, steps - first) if mining is not None else 0
    evaluations = -(-steps // every)
    # After the only evaluation, the corpus is not read again: no earlier one can have been better.
    known_tokens = amounts.corpus_tokens if evaluations == 1 else 0
    return Work(
        steps=steps,
        step_tokens=amounts.tokens / per_epoch + amounts.near_miss_share * passage_tokens,
        evaluations=evaluations,
        evaluation_tokens=amounts.evaluation_tokens,
        report_tokens=amounts.report_tokens - known_tokens,
        largest_read_tokens=amounts.largest_read_tokens,
        late_steps=late,
        late_tokens=int((mining or {}).get("negatives", MINED_EACH)) * passage_tokens if late else 0.0,
        minings=-(-late // per_epoch),
        # The evaluation before it has just read the corpus.
        mining_tokens=amounts.query_tokens + (amounts.corpus_tokens if every != per_epoch or not first else 0),
        answers=int(settings.options.get("samples", ANSWERS)) if settings.task == "causal" else 0,
    )


def write_rough_forecast(run: Path, plan: RunPlan, seconds: float | None, *, from_earlier_run: bool = False) -> None:
    """Write the forecast of a run before anything was measured."""
    memory = plan.memory
    forecast = Forecast(
        basis="earlier run" if from_earlier_run else "model size",
        rough_seconds=None if seconds is None else round(seconds, 1),
        peak_bytes=None if memory.is_of_card else memory.need_bytes,
        # As torch counts it, without the driver's own memory.
        card_peak_bytes=memory.need_bytes - memory.libraries_bytes if memory.is_of_card else None,
    )
    write_record(run, forecast)


@dataclass
class StepCosts:
    """What the steps of one attempt cost, from its events as they arrive."""

    began: dict[int, StepDone] = field(default_factory=dict)
    gaps: list[tuple[float, float]] = field(default_factory=list)  # when each step began and ended
    saves: list[tuple[float, float]] = field(default_factory=list)
    last_at: float | None = None  # the end of the last step, where the next begins at once
    card_bytes: int = 0
    has_evaluated: bool = False
    training_at: float = 0.0
    cpu: list[tuple[float, float]] = field(default_factory=list)  # time of day, CPU seconds so far

    def take(self, event: Event) -> None:
        """Take one event."""
        if isinstance(event, StepDone | Evaluated | TrainingFinished):
            self.card_bytes = max(self.card_bytes, event.card_bytes or 0)
            if event.cpu_seconds is not None:
                self.cpu.append((event.time, event.cpu_seconds))
        if isinstance(event, StepDone):
            self.began[event.step] = event
            if self.last_at is not None:
                self.gaps.append((self.last_at, event.time))
            self.last_at = event.time
        elif isinstance(event, Evaluated | EpochStarted | TrainingStarted):
            self.last_at = None
            self.has_evaluated = self.has_evaluated or isinstance(event, Evaluated)
            if isinstance(event, TrainingStarted) and not self.training_at:
                self.training_at = event.time
        elif isinstance(event, CheckpointSaved):
            self.saves.append((event.time - event.seconds, event.time))

    @property
    def step_seconds(self) -> float | None:
        """The mean time of a step; evaluations are counted separately, and checkpoints become less frequent later."""
        if len(self.gaps) < _FEWEST_STEPS - 1:
            return None
        gaps = self.gaps[1:]  # the first is often slower
        free = [gap for gap in gaps if not any(gap[0] < end and begun < gap[1] for begun, end in self.saves)]
        lasted = sorted(end - begun for begun, end in (free if len(free) >= _FEWEST_FREE_STEPS else gaps))
        kept = lasted[: max(1, int(len(lasted) * 0.98))]
        return sum(kept) / len(kept)


class Forecaster:
    """Listens to a run: makes a forecast once there is enough to go by, and checks the steps after a resume."""

    def __init__(self, run: Path, plan: RunPlan, proof: Proof | None, work: Work, report: EventSink):
        self._run, self._plan, self._proof, self._work, self._report = run, plan, proof, work, report
        self._settings = proven_settings(plan, proof)
        # A forecast without a time was made for a run that was waiting to start, so it is made again.
        known = read_record(run, Forecast)
        self._has_forecast = known is not None and known.made_at is not None
        self._to_repeat = _to_repeat(run, proof)
        self._attempt, self._peak, self._looked_at = 0, 0, 0.0
        self._steps, self._tail = StepCosts(), EventTail(run / EVENTS)

    def __call__(self, event: Event) -> None:
        """Take one event."""
        if isinstance(event, AttemptStarted):
            self._attempt = event.number
            self._steps, self._tail = StepCosts(), EventTail(attempt_folder(self._run, event.number) / EVENTS)
            if event.number == 1:
                self.forecast_from_proof()
        if not isinstance(event, Progressed) or (self._has_forecast and not self._to_repeat):
            return
        self._peak = max(self._peak, event.resident_bytes)
        now = time.monotonic()
        if now - self._looked_at >= _LOOK_SECONDS:
            self._looked_at = now
            self._look()

    def forecast_from_proof(self, *, is_waiting: bool = False) -> None:
        """Make a forecast from the first steps that the proof has timed, before the run begins.

        A run that waits to be started keeps the forecast without a time: its clock has not begun.
        """
        first = self._proof.first_steps if self._proof else None
        if first is None or first.state != "killed" or self._has_forecast:
            return
        folder = self._run / "proof" / "first-steps"
        steps = cost_of(read_events(folder / EVENTS))
        if steps.step_seconds is not None:
            start = max(0.0, steps.training_at - (folder / SETTINGS).stat().st_mtime)
            made_at = None if is_waiting else time.time()
            self._forecast(steps, steps.step_seconds, first.saved_step, start, made_at=made_at)

    def _look(self) -> None:
        for event in self._tail.read():
            self._steps.take(event)
        if not self._steps.began:
            return
        if self._to_repeat:
            self._compare(self._steps.began)
        if not self._has_forecast:
            self._forecast_from_steps(self._steps)

    def _forecast_from_steps(self, steps: StepCosts) -> None:
        """Make a forecast from the steps of this attempt, once there are enough of them."""
        count, seconds, done = len(steps.began), steps.step_seconds, max(steps.began) + 1
        is_enough = count > max(_FEWEST_STEPS, _SHARE * self._work.steps)
        if is_enough and seconds is not None and count * seconds >= _LEAST_SECONDS and done < self._work.steps:
            self._forecast(steps, seconds, done, made_at=time.time())

    def _forecast(
        self, steps: StepCosts, seconds: float, done: int, start_seconds: float = 0.0, *, made_at: float | None
    ) -> None:
        self._has_forecast = True
        settings, cores = self._settings, cores_used(steps.cpu)
        share = cores / (settings.processes * (settings.threads or 1)) if cores else 1.0
        answers = answer_seconds(self._plan.model, settings.device, share)
        left = start_seconds + forecast_seconds(self._work, done, seconds, answers)
        peak, card_peak = self._peaks(steps)
        forecast = Forecast(
            basis="measured steps",
            seconds=round(left, 1),
            peak_bytes=peak,
            card_peak_bytes=card_peak,
            made_at=made_at,
            steps=len(steps.began),
            step_seconds=seconds,
            cores=cores,
        )
        _keep(self._run, forecast)
        self._report(
            ForecastMade(
                seconds=round(left, 1),
                peak_bytes=peak,
                card_peak_bytes=card_peak,
                measured_steps=forecast.steps,
                step_seconds=seconds,
                cores=cores,
            )
        )

    def _peaks(self, steps: StepCosts) -> tuple[int | None, int | None]:
        """The most memory of the machine and of the card, with what the first evaluation will add."""
        longest = self._proof.longest if self._proof else None
        first = self._proof.first_steps if self._proof else None
        seen = max(self._peak, (longest and longest.peak_bytes) or 0, (first and first.peak_bytes) or 0)
        is_on_card = self._settings.device.startswith("cuda")
        more = 0 if steps.has_evaluated else self._evaluation_bytes(self._plan.model)
        peak = int(seen * _ROOM) + (0 if is_on_card else self._settings.processes * more)
        card_peak = int(steps.card_bytes * _ROOM) + more if is_on_card and steps.card_bytes else None
        return peak or None, card_peak

    def _evaluation_bytes(self, model: ModelFacts) -> int:
        tokens = min(self._settings.micro_tokens, self._work.largest_read_tokens)
        return int(_NEW_SHARE * reading_bytes(model, tokens, self._settings.precision))

    def _compare(self, done: dict[int, StepDone]) -> None:
        """Compare the steps that the killed process had done after its last save: they must repeat bit for bit."""
        wanted = self._to_repeat
        if not wanted.keys() <= done.keys() and max(done) <= max(wanted):
            return
        self._to_repeat = {}
        if self._has_other_processes():  # they add up in another order, so they agree only within rounding
            return
        common = sorted(wanted.keys() & done.keys())
        if not common:
            return
        other = [step for step in common if _result(wanted[step]) != _result(done[step])]
        check = ResumeCheck(is_exact=not other, steps=len(common))
        if other:
            loss, expected = done[other[0]].loss, wanted[other[0]].loss
            check = ResumeCheck(
                is_exact=False,
                steps=len(common),
                different_step=other[0] + 1,
                loss=loss,
                expected_loss=expected,
                is_device_inexact=self._settings.device.startswith("mps"),  # embeddings: pytorch#195404
            )
        _keep(self._run, check)
        self._report(ProofReported(result=check))

    def _has_other_processes(self) -> bool:
        proven = read_artifact(self._run / "proof" / "first-steps" / SETTINGS)
        trained = read_artifact(attempt_folder(self._run, self._attempt) / SETTINGS)
        return proven.get("processes") != trained.get("processes")


def cores_used(cpu: Sequence[tuple[float, float]], since: float = 0.0) -> float | None:
    """How many cores all processes of the engine computed with, on average, from their first report after a time on."""
    told = [one for one in cpu if one[0] >= since]
    if len(told) < 2:
        return None
    (begun, used), (ended, used_at_end) = told[0], told[-1]
    return round((used_at_end - used) / (ended - begun), 2) if ended > begun else None


def cost_of(events: Iterable[Event]) -> StepCosts:
    """What the steps of one attempt cost."""
    costs = StepCosts()
    for event in events:
        costs.take(event)
    return costs


def _to_repeat(run: Path, proof: Proof | None) -> dict[int, StepDone]:
    """The killed first steps after their last save, if no attempt was compared with them yet."""
    first = proof.first_steps if proof else None
    has_begun = any((run / "attempts").glob("*"))
    if first is None or first.state != "killed" or has_begun or read_record(run, ResumeCheck) is not None:
        return {}
    events = read_events(run / "proof" / "first-steps" / EVENTS)
    return {event.step: event for event in events if isinstance(event, StepDone) and event.step >= first.saved_step}


def _result(step: StepDone) -> tuple[float | None, float | None]:
    return step.loss, step.norm


def _keep(run: Path, record: Forecast | ResumeCheck) -> None:
    with contextlib.suppress(OSError):  # a full disk must not end the run that the forecast is about
        write_record(run, record)
