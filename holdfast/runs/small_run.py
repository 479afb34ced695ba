"""A whole run on few examples, supervised like any other, so that a plan that crashes steps down while it is cheap."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from holdfast.core.errors import FallbacksFailed, HoldfastError, MachineError, RequestError
from holdfast.core.old_events import read_events
from holdfast.core.runfolder import EVENTS
from holdfast.planning.ladders import engine_ladder
from holdfast.runs.engine_child import EngineChildren, OnEvent
from holdfast.runs.first_steps import peak_of
from holdfast.runs.supervise import Job, Result, supervise
from holdfast.supervisor.child import Launch

_MOST_ATTEMPTS = 6


def run_small(
    run: Path,
    prepared: Path,
    settings: Mapping[str, object],
    variables: Mapping[str, object],
    children: EngineChildren,
    on_event: OnEvent,
) -> dict[str, Any]:
    """Train one step, evaluate, save and export; it learns next to nothing, so that its losses can be compared."""
    run.mkdir(parents=True, exist_ok=True)
    small = {"prepared": str(prepared), "run": str(run), "max_steps": 1, "lr": 1e-8, "keep": "last"}
    settings = {**settings, **small}

    def launch(attempt: Path, rung: Mapping[str, object], resume: bool) -> Launch:
        return children.launch(attempt, settings, {**variables, **rung})

    job = Job(
        kind="proof",
        words=f"proof {run.name}",
        make_launch=launch,
        ladder=engine_ladder(settings),
        max_attempts=_MOST_ATTEMPTS,
    )
    result = supervise(run, job, on_event=on_event)
    if result.state != "finished":
        raise _refused(run, result)
    events = [event for file in sorted((run / "attempts").glob(f"*/{EVENTS}")) for event in read_events(file)]
    losses = [event["metrics"] for event in events if event["event"] == "evaluated"]
    loss = losses[-1].get("loss") if losses and isinstance(losses[-1], dict) else None
    return {"loss": loss, "changes": dict(result.changes), "peak_bytes": peak_of(run), "seconds": result.seconds}


def _refused(run: Path, result: Result) -> HoldfastError:
    kinds = {RequestError.exit_code: RequestError, MachineError.exit_code: MachineError}
    kind = kinds.get(result.exit_code, FallbacksFailed)
    return kind(
        "the run does not even do one step with its longest examples",
        seen=f"{result.sentence}; all that was seen is in {run}",
        try_next=result.remedies[:3],
        slug="" if result.slug == "unknown" else result.slug,
    )
