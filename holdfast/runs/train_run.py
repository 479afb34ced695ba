"""A training run from its request to its result: prepare, prove, then supervise the attempts.

A new run and a resumed one take the same road: the run folder is the only truth, so everything is read from it and
what is already done is not done again.
"""

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import replace
from pathlib import Path

from msgspec import structs

from holdfast.core.disk_space import writing
from holdfast.core.env import node_name
from holdfast.core.errors import HoldfastError, RequestError
from holdfast.core.event_log import EventSink, read_events
from holdfast.core.events import Event, ReportFailed, ReportWritten, RunOpened, StepDone, TrainingStarted
from holdfast.core.records import (
    Changes,
    Compared,
    ComparedTime,
    Forecast,
    ForecastCheck,
    Proof,
    Result,
    RunPlan,
    read_data_sha256,
    read_record,
    read_request,
    write_request,
)
from holdfast.core.runfolder import EVENTS, NODES, PROOF, attempt_folders, model_folder
from holdfast.core.scores import read_metrics
from holdfast.core.settings import SETTINGS, TrainRequest, nodes_of
from holdfast.data.amounts import amounts_of
from holdfast.data.shards import read_manifest
from holdfast.planning.ladders import engine_ladder
from holdfast.planning.train_plan import proven_settings
from holdfast.runs.earlier_attempts import read_pauses
from holdfast.runs.engine_child import EngineChildren
from holdfast.runs.forecast import Forecaster, cores_used, cost_of, work_of, write_rough_forecast
from holdfast.runs.lease import hold
from holdfast.runs.member import follow, lead_or_follow
from holdfast.runs.peers import Peers
from holdfast.runs.prepare_run import find_model, prepare_run
from holdfast.runs.prove import prove
from holdfast.runs.report.page import write_report
from holdfast.runs.run_events import RunEvents
from holdfast.runs.run_memory import RunMemory, fingerprint_of, key_of
from holdfast.runs.run_path import require_request
from holdfast.runs.state import peak_bytes
from holdfast.runs.stop_signals import AtOnce
from holdfast.runs.supervise import RunSpec, supervise
from holdfast.runs.trackers import tracking
from holdfast.supervisor.attempt import StopRequest
from holdfast.supervisor.child import Launch

Guard = Callable[[StopRequest], AbstractContextManager[None]]


def plan_train(run: Path, *, on_event: EventSink) -> None:
    """Prepare a run and prove it; `resume_train` continues from there."""
    on_event(RunOpened(folder=str(run)))
    request, report = _train_request(run), RunEvents(run, on_event)
    with EngineChildren(run, processes=request.processes or 1) as children, hold(run):
        plan = _plan(run, request, report, children)
    _forecaster(run, plan, report).forecast_from_proof(is_waiting=True)


def resume_train(run: Path, *, on_event: EventSink, guard: Guard = lambda stop: nullcontext()) -> Result:
    """Bring a training run to its end, wherever it is now; `guard` lets a stop be requested while it trains."""
    request, stop = own_request(run), StopRequest()
    on_event(RunOpened(folder=str(run)))
    with EngineChildren(run, processes=(request.processes or 1) * nodes_of(request)) as children:

        def lead() -> Result:
            return _lead(run, request, children, on_event, guard, stop)

        def join() -> Result | None:
            with guard(stop):
                return follow(run, part_spec(run, request, children), on_event, stop=stop)

        return lead_or_follow(lead, join, nodes=nodes_of(request))


def own_request(run: Path) -> TrainRequest:
    """The request of a run; each of several machines waits for the others as long as its own command line says."""
    request, own = _train_request(run), read_request(run / NODES / node_name())
    return replace(request, nodes_wait=own.nodes_wait) if isinstance(own, TrainRequest) else request


def _train_request(run: Path) -> TrainRequest:
    request = require_request(run)
    if not isinstance(request, TrainRequest):
        raise RequestError(f"{run} holds a command, not a training run", try_next=(f"holdfast resume {run}",))
    return request


def _lead(
    run: Path, request: TrainRequest, children: EngineChildren, on_event: EventSink, guard: Guard, stop: StopRequest
) -> Result:
    """Plan the run unless that is done, and run it to the end; other machines wait meanwhile."""
    with ExitStack() as held:
        with guard(stop):
            lease = held.enter_context(hold(run, report=on_event, is_stopped=lambda: stop.is_asked))
        at_once = AtOnce()  # nothing is trained yet
        if stop.is_asked:
            at_once.ask(stop.signal)
        peers = Peers(run, nodes_of(request), lease)
        report = RunEvents(run, on_event, peers.interrupting(at_once))
        with guard(at_once):
            plan = _plan(run, request, report, children)
        lease.require()  # planning may have taken longer than a lease
        with guard(stop), tracking(run, request.report_to):
            forecaster = _forecaster(run, plan, RunEvents(run, on_event))
            spec = train_spec(run, request, plan, children)
            result = supervise(run, spec, on_event, forecaster, children.hear, stop=stop, lease=lease)
    _write_report(run, on_event)
    return result


def _plan(run: Path, request: TrainRequest, report: EventSink, children: EngineChildren) -> RunPlan:
    """The plan of the run, made and proven where it is not there yet or no longer holds."""
    plan, proof, attempts = read_record(run, RunPlan), read_record(run, Proof), attempt_folders(run)
    is_proven_here = proof is None or proof.fingerprint == fingerprint_of()
    is_as_requested = plan is None or (plan.processes, plan.nodes) == (request.processes or 1, nodes_of(request))
    if plan and (proof or attempts) and is_proven_here and is_as_requested and _is_prepared(run, plan):
        return plan
    children.warm_up()  # while the data is read
    with writing(run, "--out FOLDER, on another disk"):
        # What a run learns must not change once it has begun, so its earlier plan is kept where it was proven here.
        earlier = plan if attempts and proof and is_proven_here else None
        newest = int(attempts[-1].name) if attempts else 0
        try:
            prepared = prepare_run(run, request, report, earlier=earlier, attempts=newest)
        except HoldfastError:
            if plan and not is_as_requested:  # the refused number of processes must not come back with the next resume
                request = replace(request, processes=plan.processes, nodes=plan.nodes)
                write_request(run, request, data_sha256=read_data_sha256(run))
            raise
        if not attempts:
            prove(run, request, prepared, report, children)
        elif not earlier:
            (run / PROOF).unlink(missing_ok=True)
        if attempts and not (earlier and is_as_requested):
            write_rough_forecast(run, prepared.plan, None)  # it is measured again
    return prepared.plan


def _is_prepared(run: Path, plan: RunPlan) -> bool:
    """Whether the prepared data is there and the folder is where it was planned: it may have been copied or renamed."""
    return Path(plan.settings.run) == run and read_manifest(Path(plan.settings.prepared)) is not None


def _forecaster(run: Path, plan: RunPlan, report: EventSink) -> Forecaster:
    settings = plan.settings
    work = work_of(settings, amounts_of(Path(settings.prepared), settings.batch_size))
    return Forecaster(run, plan, read_record(run, Proof), work, report)


def _write_report(run: Path, on_event: EventSink) -> None:
    """Leave report.html; a report that cannot be written never spoils a run."""
    try:
        on_event(ReportWritten(path=str(write_report(run))))
    except Exception as error:
        on_event(ReportFailed(error=str(error)))


def train_spec(run: Path, request: TrainRequest, plan: RunPlan, children: EngineChildren | None = None) -> RunSpec:
    """How the attempts of a run that is planned and prepared are started, and what may be changed about them."""
    proof = read_record(run, Proof)
    settings, variables = proven_settings(plan, proof), proof.variables if proof else {}
    children = children or EngineChildren(run)

    def launch(attempt: Path, changes: Changes, resume: bool) -> Launch:
        own = settings
        if own.model and not Path(own.model).is_dir():  # planned on another machine
            own = replace(own, model=str(find_model(request, plan.task).folder))
        return children.launch(attempt, own, {**variables, **changes}, nodes=plan.nodes)

    return RunSpec(
        kind="train",
        words=f"train {Path(request.data).name}",
        make_launch=launch,
        ladder=engine_ladder(settings),
        allow_changes=request.allow_changes,
        max_attempts=request.max_attempts,
        nodes=plan.nodes,  # as the machine that leads was told
        nodes_wait_seconds=request.nodes_wait,
        step_timeout_seconds=request.step_timeout,
        memory=RunMemory.open(),
        memory_key=memory_key(request, plan),
        dropped_overrides=_dropped_overrides(run, plan),
        describe_result=lambda result: describe_result(run, plan, result),
    )


def part_spec(run: Path, request: TrainRequest, children: EngineChildren) -> RunSpec:
    """This machine's part of a run that another one leads: as planned there, with the files where they are here."""

    def launch(attempt: Path, changes: Changes, resume: bool) -> Launch:
        plan = read_record(run, RunPlan)
        if plan is None:
            raise RequestError(f"{run} is not planned yet", try_next=(f"holdfast resume {run}",))
        settings = replace(plan.settings, run=str(run), prepared=str(run / "prepared"))
        here = structs.replace(plan, settings=settings)
        return train_spec(run, request, here, children).make_launch(attempt, changes, resume)

    return RunSpec(
        kind="train",
        words=f"train {Path(request.data).name}",
        make_launch=launch,
        ladder=engine_ladder(None),
        nodes=nodes_of(request),
        step_timeout_seconds=request.step_timeout,
    )


def memory_key(request: TrainRequest, plan: RunPlan) -> str:
    """The key under which it is remembered what made a run finish: data, model and settings of how to compute."""
    wishes = {
        name: value
        for name, one in SETTINGS.items()
        if (one.affects == "computing" or "memory" in one.traits) and (value := getattr(request, name)) != one.default
    }
    model = plan.model.folder or plan.settings.model
    return key_of("train", str(Path(request.data).absolute()), model, plan.task, repr(wishes))


def _dropped_overrides(run: Path, plan: RunPlan) -> frozenset[str]:
    """What earlier attempts changed and a person has set again since."""
    attempts = attempt_folders(run)
    is_new = attempts and plan.changed_after_attempt == int(attempts[-1].name)
    return frozenset(("processes", "threads", "shard")) if is_new else frozenset()


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
