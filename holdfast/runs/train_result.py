"""The result of a training run: its model, its scores, and how good the forecast was."""

import time
from collections.abc import Sequence
from pathlib import Path

from msgspec import structs

from holdfast.core.event_log import read_events
from holdfast.core.events import Event, StepDone, TrainingStarted
from holdfast.core.records import Compared, ComparedTime, Forecast, ForecastCheck, Result, RunPlan, read_record
from holdfast.core.runfolder import EVENTS, attempt_folders, model_folder
from holdfast.core.scores import read_metrics
from holdfast.pipeline.forecast import cores_used, cost_of
from holdfast.runs.earlier_attempts import read_pauses
from holdfast.runs.state import peak_bytes

Pauses = Sequence[tuple[float, float]]


def describe_result(run: Path, plan: RunPlan, result: Result) -> Result:
    """The result of a training run, with the model, its scores and how good the forecast was."""
    result = structs.replace(result, kind="train", task=plan.task)
    if result.state != "finished":
        return structs.replace(result, next=(f"holdfast resume {run}",))
    return structs.replace(
        result,
        model=str(model_folder(run)),
        metrics=read_metrics(run).scores,
        forecast=check_forecast(run, plan),
        next=(f'holdfast predict {run} "..."', f"holdfast report {run}"),
    )


def check_forecast(run: Path, plan: RunPlan) -> ForecastCheck:
    """What was forecast next to what happened, with the error as a share, and what the forecast could not know."""
    forecast, pauses = read_record(run, Forecast) or Forecast(basis="model size"), read_pauses(run)
    attempts = [list(read_events(attempt / EVENTS)) for attempt in attempt_folders(run)]
    card = max((cost_of(events).card_bytes for events in attempts), default=0)
    clock = ComparedTime(forecast=forecast.seconds)
    if made_at := forecast.made_at:
        clock = ComparedTime(
            **structs.asdict(_compared(forecast.seconds, _between(made_at, time.time(), pauses))),
            lost_seconds=round(lost_seconds(attempts, made_at, pauses), 1),
            cores=_compared(forecast.cores, cores_used(cost_of(attempts[-1]).cpu, made_at) if attempts else None),
        )
    return ForecastCheck(
        seconds=clock,
        peak_bytes=_compared(forecast.peak_bytes, _peak(run, plan)),
        card_peak_bytes=_compared(forecast.card_peak_bytes, card or None),
    )


def lost_seconds(attempts: Sequence[Sequence[Event]], since: float = 0.0, pauses: Pauses = ()) -> float:
    """What ended attempts cost: for each, from the last step that was not done again to the first one after it."""
    lost = 0.0
    done: dict[int, float] = {}  # when each step was first reached
    for events in attempts:
        first = next((event for event in events if isinstance(event, TrainingStarted)), None)
        steps = [event for event in events if isinstance(event, StepDone)]
        if first and done and steps:
            known = [at for step, at in done.items() if step < first.first_step]
            begun = max([since, *known]) if known else max(since, min(done.values()))
            lost += max(0.0, _between(begun, steps[0].time, pauses))
        done |= {event.step: event.time for event in steps}
    return lost


def _between(begun: float, ended: float, pauses: Pauses) -> float:
    """How long it was from one time of day to another, without the pauses."""
    return ended - begun - sum(max(0.0, min(ended, end) - max(begun, start)) for start, end in pauses)


def _compared(forecast: float | None, actual: float | None) -> Compared:
    error = round(actual / forecast - 1, 4) if forecast and actual else None
    return Compared(forecast=forecast, actual=actual, error=error)


def _peak(run: Path, plan: RunPlan) -> int | None:
    """The most memory that any attempt was seen to hold, since another number of processes was requested."""
    attempts = (one for one in attempt_folders(run) if int(one.name) > plan.changed_after_attempt)
    return max((peak_bytes(attempt) or 0 for attempt in attempts), default=0) or None
