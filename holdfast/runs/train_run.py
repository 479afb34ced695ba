"""A training run from its request to its result: the stages of the pipeline, then the attempts under supervision.

A new run and a resumed one take the same road: the run folder is the only truth, so everything is read from it and
what is already done is not done again.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import replace
from pathlib import Path

from holdfast.core.disk_space import writing
from holdfast.core.env import node_name
from holdfast.core.errors import RequestError
from holdfast.core.event_log import EventSink
from holdfast.core.events import ReportFailed, ReportWritten, RunOpened
from holdfast.core.records import Proof, Result, RunPlan, read_record, read_request
from holdfast.core.runfolder import NODES
from holdfast.core.settings import TrainRequest, nodes_of
from holdfast.data.amounts import amounts_of
from holdfast.pipeline.forecast import Forecaster, work_of
from holdfast.pipeline.stages import prepare_run
from holdfast.runs.engine_child import EngineChildren
from holdfast.runs.folds import has_folds, train_folds
from holdfast.runs.lease import hold
from holdfast.runs.member import follow, lead_or_follow
from holdfast.runs.peers import Peers
from holdfast.runs.proof_runs import EngineProofRuns
from holdfast.runs.report.page import write_report
from holdfast.runs.run_events import RunEvents
from holdfast.runs.run_path import require_request
from holdfast.runs.stop_signals import AtOnce
from holdfast.runs.supervise import supervise
from holdfast.runs.trackers import tracking
from holdfast.runs.train_spec import part_spec, train_spec
from holdfast.supervisor.attempt import StopRequest

Guard = Callable[[StopRequest], AbstractContextManager[None]]


def plan_train(run: Path, *, on_event: EventSink) -> None:
    """Prepare a run and prove it; `resume_train` continues from there."""
    on_event(RunOpened(folder=str(run)))
    request, report = _train_request(run), RunEvents(run, on_event)
    with EngineChildren(run, processes=request.processes or 1) as children, hold(run):
        plan = _prepare(run, request, report, children)
    _forecaster(run, plan, report).forecast_from_proof(is_waiting=True)


def resume_train(run: Path, *, on_event: EventSink, guard: Guard = lambda stop: nullcontext()) -> Result:
    """Bring a training run to its end, wherever it is now; `guard` lets a stop be requested while it trains."""
    request, stop = own_request(run), StopRequest()
    if has_folds(request):
        return train_folds(run, request, lambda fold: resume_train(fold, on_event=on_event, guard=guard), on_event)
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
            plan = _prepare(run, request, report, children)
        lease.require()  # planning may have taken longer than a lease
        with guard(stop), tracking(run, request.report_to):
            forecaster = _forecaster(run, plan, RunEvents(run, on_event))
            spec = train_spec(run, request, plan, children)
            result = supervise(run, spec, on_event, forecaster, children.hear, stop=stop, lease=lease)
    _write_report(run, on_event)
    return result


def _prepare(run: Path, request: TrainRequest, report: EventSink, children: EngineChildren) -> RunPlan:
    """The plan of the run, after every stage that is not done yet."""
    with writing(run, "--out FOLDER, on another disk"):
        return prepare_run(run, request, report, EngineProofRuns(report, children, request.step_timeout))


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
