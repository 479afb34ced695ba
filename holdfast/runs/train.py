"""One file in, one finished model out: the whole walk of a training run, from the request to its result.

Reads: the request. Leaves: a run folder that is the only truth about the run and can be resumed from any point.
"""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

from holdfast.core.artifacts import read_artifact, write_artifact
from holdfast.core.disk_space import writing
from holdfast.core.env import node_name
from holdfast.core.errors import HoldfastError, RequestError
from holdfast.core.request import KIND, TrainRequest, nodes_of, read_saved
from holdfast.core.runfolder import NODES, PLAN, REQUEST, attempt_folders
from holdfast.data.amounts import amounts_of
from holdfast.data.shards import read_manifest
from holdfast.planning.ladder import Changes
from holdfast.planning.ladders import engine_ladder
from holdfast.planning.parallel import SHARED_SETTINGS
from holdfast.planning.proving import Work
from holdfast.runs.crew import Crew
from holdfast.runs.engine_child import EngineChildren
from holdfast.runs.follower import follow
from holdfast.runs.forecasting import Forecasting
from holdfast.runs.holder import AlreadyHeld, hold
from holdfast.runs.memory import Memory, fingerprint_of, key_of
from holdfast.runs.prove import prove
from holdfast.runs.report.page import write_report
from holdfast.runs.result import closing_lines, describe_result, read_result
from holdfast.runs.stopping import AtOnce
from holdfast.runs.supervise import Job, Result, supervise
from holdfast.runs.trackers import following
from holdfast.runs.walk import OnEvent, Story, find_model, read_plan, walk
from holdfast.runs.work import work_of
from holdfast.supervisor.attempt import StopRequest
from holdfast.supervisor.child import Launch

__all__ = (
    "closing_lines",
    "make_job",
    "plan_train",
    "read_result",
    "resume_train",
    "train_job",
)

_WISHES = (
    *("device", "precision", "threads", "micro_tokens", "gradient_checkpointing", "torch_compile"),
    *("batch_size", "max_length", "lora", "allow_changes"),
)

Guard = Callable[[StopRequest], AbstractContextManager[None]]


def plan_train(run: Path, *, on_event: OnEvent) -> None:
    """Walk to the plan and prove it; `resume_train` goes on from there."""
    on_event("run", {"folder": str(run)})
    request = read_saved(run / REQUEST)
    with EngineChildren(run, processes=request.processes or 1) as children, hold(run):
        plan = _plan(run, request, on_event, children)
    Forecasting(run, _work(plan), on_event).forecast_from_proof(is_waiting=True)


def resume_train(run: Path, *, on_event: OnEvent, guard: Guard = lambda stop: nullcontext()) -> Result:
    """Bring a training run to its end, from wherever it stands; `guard` lets a stop be asked for while it trains."""
    request = asked_here(run)
    on_event("run", {"folder": str(run)})
    with EngineChildren(run, processes=(request.processes or 1) * nodes_of(request)) as children:
        stop = StopRequest()
        while True:
            try:
                result = _lead(run, request, children, on_event, guard, stop)
                break
            except AlreadyHeld:
                if nodes_of(request) == 1:
                    raise
            with guard(stop):
                part = follow(run, part_job(run, request, children), on_event=on_event, stop=stop)
            if part:
                return part
    _report(run, on_event)
    return result


def _lead(
    run: Path, request: TrainRequest, children: EngineChildren, on_event: OnEvent, guard: Guard, stop: StopRequest
) -> Result:
    """Plan the run where that is not done yet, and bring it to its end; other machines wait meanwhile."""
    with ExitStack() as held:
        with guard(stop):
            waiting = hold(
                run,
                say=lambda words: on_event("waiting", {"words": words}),
                is_stopped=lambda: stop.is_asked,
            )
            lease = held.enter_context(waiting)
        at_once = AtOnce()  # nothing is trained yet
        if stop.is_asked:
            at_once.ask(stop.signal)
        others = Crew(run, nodes_of(request), lease)
        with guard(at_once):
            plan = _plan(run, request, others.hearing(at_once, on_event), children)
        lease.require()
        with guard(stop), following(run, request.report_to):
            listening = children.listening(Forecasting(run, _work(plan), on_event))
            job = make_job(run, request, plan, children)
            return supervise(run, job, on_event=listening, stop=stop, lease=lease)


def _plan(run: Path, request: TrainRequest, on_event: OnEvent, children: EngineChildren) -> dict[str, Any]:
    """The plan of the run, made and proven where it is not there yet or was made on another kind of machine."""
    plan = read_plan(run)
    proof = plan.get("proof") or {}
    settings = plan.get("settings") or {}
    is_prepared = settings and read_manifest(Path(settings["prepared"])) is not None
    is_moved = settings and Path(settings["run"]) != run  # the folder was copied or renamed
    is_of_here = proof.get("machine") in (None, fingerprint_of())
    has_begun = any((run / "attempts").glob("*"))
    is_as_asked = not plan or _planned(plan) == (request.processes or 1, nodes_of(request))
    if is_prepared and is_of_here and is_as_asked and not is_moved and (proof or has_begun):
        return plan
    children.warm_up()  # beside the reading of the data
    with writing(run, "--out FOLDER, on another disk"):
        try:
            walked = walk(run, request, on_event)
        except HoldfastError:
            if not is_as_asked:  # what was refused is not asked for any more
                before = dict(zip(("processes", "nodes"), _planned(plan), strict=True))
                write_artifact(run, REQUEST, {**read_artifact(run / REQUEST), **before})
            raise
        if has_begun:
            _keep_proven(run, plan)
        else:
            prove(run, request, walked, Story(run, on_event), children)
    return read_plan(run)


def _work(plan: Mapping[str, Any]) -> Work:
    settings = plan["settings"]
    return work_of(settings, amounts_of(Path(settings["prepared"]), int(settings["batch_size"])))


def _keep_proven(run: Path, earlier: Mapping[str, Any]) -> None:
    """Take what was proven on this machine into a plan that was made anew, as when the prepared data was removed.

    Where another number of processes was asked for since, what depends on that number is taken from the new plan.
    """
    proof, anew = earlier.get("proof") or {}, read_plan(run)
    if not earlier.get("settings") or proof.get("machine") != fingerprint_of():
        return
    names = ("settings", "variables", "choices", "measured", "proof", "forecast")
    kept = {name: earlier[name] for name in names if name in earlier}
    kept["settings"] = {**earlier["settings"], "run": str(run), "prepared": str(run / "prepared")}
    if _planned(earlier) != _planned(anew):
        for part in ("settings", "choices"):
            kept[part] = {name: value for name, value in kept[part].items() if name not in SHARED_SETTINGS}
            kept[part] |= {name: value for name, value in anew[part].items() if name in SHARED_SETTINGS}
        kept["forecast"] = anew["forecast"]
        kept["processes_asked_after"] = int(attempt_folders(run)[-1].name)
    write_artifact(run, PLAN, {**anew, **kept})


def asked_here(run: Path) -> TrainRequest:
    """The request of a run; of several machines each waits for the others as long as it was told itself."""
    request, own = read_saved(run / REQUEST), run / NODES / node_name() / REQUEST
    return replace(request, nodes_wait=read_saved(own).nodes_wait) if own.exists() else request


def _planned(plan: Mapping[str, Any]) -> tuple[int, int]:
    """The processes of each machine, and the machines."""
    choices = plan.get("choices") or {}
    processes, nodes = (int((choices.get(name) or {}).get("value") or 1) for name in ("processes", "nodes"))
    return processes, nodes


def _set_aside(run: Path, plan: Mapping[str, Any]) -> frozenset[str]:
    """What earlier attempts changed and a person has asked for anew since."""
    attempts = attempt_folders(run)
    is_asked = attempts and plan.get("processes_asked_after") == int(attempts[-1].name)
    return frozenset(("processes", "threads", "shard")) if is_asked else frozenset()


def _report(run: Path, on_event: OnEvent) -> None:
    """Leave report.html; a report that cannot be written never spoils a run."""
    try:
        on_event("report", {"path": str(write_report(run))})
    except Exception as error:
        on_event("note", {"words": f"the report could not be written: {error}"})


def train_job(run: Path) -> Job:
    """The attempts of a run as its folder tells them; it must be planned and prepared."""
    plan = read_plan(run)
    if not plan.get("settings"):
        raise RequestError(f"{run} is not planned yet", try_next=(f"holdfast resume {run}",))
    return make_job(run, read_saved(run / REQUEST), plan)


def make_job(run: Path, request: TrainRequest, plan: Mapping[str, Any], children: EngineChildren | None = None) -> Job:
    """The attempts of a run that is planned and prepared."""
    settings: dict[str, object] = dict(plan["settings"])
    variables: dict[str, object] = dict(plan.get("variables") or {})
    _, nodes = _planned(plan)  # by the machine that leads, whatever this one was told
    children = children or EngineChildren(run)

    def launch(attempt: Path, changes: Changes, resume: bool) -> Launch:
        if settings.get("model") and not Path(str(settings["model"])).is_dir():  # planned on another machine
            settings["model"] = str(find_model(request, str(plan["task"])).folder)
        return children.launch(attempt, settings, {**variables, **changes}, nodes=nodes)

    return Job(
        kind=KIND,
        words=f"train {Path(request.data).name}",
        make_launch=launch,
        ladder=engine_ladder(settings),
        allow_changes=request.allow_changes,
        max_attempts=request.max_attempts,
        nodes=nodes,
        nodes_wait_seconds=request.nodes_wait,
        step_timeout_seconds=request.step_timeout,
        memory=Memory.open(),
        memory_key=memory_key(request, plan),
        set_aside=_set_aside(run, plan),
        describe_result=lambda result: describe_result(run, read_plan(run), result),
    )


def part_job(run: Path, request: TrainRequest, children: EngineChildren) -> Job:
    """This machine's part of a run that another one leads: as planned there, with the files as they lie here."""

    def launch(attempt: Path, changes: Changes, resume: bool) -> Launch:
        plan = read_plan(run)
        settings = {**plan["settings"], "run": str(run), "prepared": str(run / "prepared")}
        own = make_job(run, request, {**plan, "settings": settings}, children)
        return own.make_launch(attempt, changes, resume)

    return Job(
        kind=KIND,
        words=f"train {Path(request.data).name}",
        make_launch=launch,
        ladder=engine_ladder({}),
        nodes=nodes_of(request),
        step_timeout_seconds=request.step_timeout,
    )


def memory_key(request: TrainRequest, plan: Mapping[str, Any]) -> str:
    """Under which it is remembered what made a run finish: the same data, model and wishes about how to compute."""
    wishes = {name: getattr(request, name) for name in _WISHES}
    if (request.processes or 1) > 1:
        wishes["processes"] = request.processes
    if nodes_of(request) > 1:
        wishes["nodes"] = request.nodes
    model = str((plan.get("model") or {}).get("folder") or plan["settings"].get("model"))
    return key_of("train", str(Path(request.data).absolute()), model, str(plan.get("task")), repr(wishes))
