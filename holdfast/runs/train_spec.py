"""How the attempts of a training run are started, and what may be changed about them."""

from dataclasses import replace
from pathlib import Path

from msgspec import structs

from holdfast.core.errors import RequestError
from holdfast.core.records import Changes, Proof, RunPlan, read_record
from holdfast.core.run_memory import RunMemory, key_of
from holdfast.core.runfolder import attempt_folders
from holdfast.core.settings import SETTINGS, TrainRequest, nodes_of
from holdfast.pipeline.inputs import find_model
from holdfast.pipeline.train_plan import proven_settings
from holdfast.runs.engine_child import EngineChildren
from holdfast.runs.supervise import RunSpec
from holdfast.runs.train_result import describe_result
from holdfast.supervisor.child import Launch
from holdfast.supervisor.ladders import engine_ladder


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
