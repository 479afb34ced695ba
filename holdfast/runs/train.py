"""One file in, one finished model out: the whole walk of a training run, from the request to its result.

Reads: the request. Leaves: a run folder that is the only truth about the run and can be resumed from any point.
"""

import difflib
import errno
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

from holdfast.core.artifacts import write_artifact
from holdfast.core.errors import HoldfastError, MachineError, RequestError
from holdfast.core.request import KIND, TrainRequest, read_saved, to_saved
from holdfast.core.runfolder import PLAN, REQUEST, attempt_folders, model_folder
from holdfast.core.text import human_bytes
from holdfast.data.amounts import amounts_of
from holdfast.data.shards import read_manifest
from holdfast.planning.ladder import Changes
from holdfast.planning.ladders import engine_ladder
from holdfast.planning.presets import with_preset
from holdfast.planning.processes import SHARED_SETTINGS
from holdfast.planning.proving import Work
from holdfast.runs.engine_child import EngineChildren
from holdfast.runs.folders import RUNS, make_free_folder, take_folder
from holdfast.runs.forecasting import Forecasting
from holdfast.runs.holder import hold
from holdfast.runs.memory import Memory, fingerprint_of, key_of
from holdfast.runs.prove import prove
from holdfast.runs.report import write_report
from holdfast.runs.result import closing_lines, describe_result, read_result
from holdfast.runs.supervise import Job, Result, supervise
from holdfast.runs.trackers import following, require_trackers
from holdfast.runs.walk import OnEvent, Story, read_plan, walk
from holdfast.runs.work import work_of
from holdfast.supervisor.attempt import StopRequest
from holdfast.supervisor.child import Launch

__all__ = (
    "closing_lines",
    "discard",
    "make_job",
    "make_run_folder",
    "plan_train",
    "read_result",
    "resume_train",
    "start_train",
    "train_job",
)

_WISHES = (
    *("device", "precision", "threads", "micro_tokens", "gradient_checkpointing", "torch_compile"),
    *("batch_size", "max_length", "lora", "allow_changes"),
)

Guard = Callable[[StopRequest], AbstractContextManager[None]]


def start_train(request: TrainRequest) -> Path:
    """Make the folder of a new run, with the request in it."""
    request = with_preset(_from_earlier(request))
    _require_data(request)
    require_trackers(request.report_to)
    return make_run_folder(request)


def discard(run: Path) -> None:
    """Remove the folder of a run that was refused before it began; one in which anything was trained stays."""
    if not any((run / name).exists() for name in ("attempts", "checkpoints", "model", "proof")):
        shutil.rmtree(run, ignore_errors=True)


def plan_train(run: Path, *, on_event: OnEvent) -> None:
    """Walk to the plan and prove it; `resume_train` goes on from there."""
    on_event("run", {"folder": str(run)})
    request = read_saved(run / REQUEST)
    with EngineChildren(run, processes=request.processes or 1) as children:
        plan = _plan(run, request, on_event, children)
    Forecasting(run, _work(plan), on_event).forecast_from_proof(is_waiting=True)


def resume_train(run: Path, *, on_event: OnEvent, guard: Guard = lambda stop: nullcontext()) -> Result:
    """Bring a training run to its end, from wherever it stands; `guard` lets a stop be asked for while it trains."""
    request = read_saved(run / REQUEST)
    on_event("run", {"folder": str(run)})
    with EngineChildren(run, processes=request.processes or 1) as children:
        plan = _plan(run, request, on_event, children)
        stop = StopRequest()
        with guard(stop), following(run, request.report_to):
            listening = children.listening(Forecasting(run, _work(plan), on_event))
            result = supervise(run, make_job(run, request, plan, children), on_event=listening, stop=stop)
    _report(run, on_event)
    return result


def _plan(run: Path, request: TrainRequest, on_event: OnEvent, children: EngineChildren) -> dict[str, Any]:
    """The plan of the run, made and proven where it is not there yet or was made on another kind of machine."""
    plan = read_plan(run)
    proof = plan.get("proof") or {}
    settings = plan.get("settings") or {}
    is_prepared = settings and read_manifest(Path(settings["prepared"])) is not None
    is_moved = settings and Path(settings["run"]) != run  # the folder was copied or renamed
    is_of_here = proof.get("machine") in (None, fingerprint_of())
    has_begun = any((run / "attempts").glob("*"))
    is_as_asked = not plan or _planned_processes(plan) == (request.processes or 1)
    if is_prepared and is_of_here and is_as_asked and not is_moved and (proof or has_begun):
        return plan
    children.warm_up()  # beside the reading of the data
    with hold(run), _room(run):
        try:
            walked = walk(run, request, on_event)
        except HoldfastError:
            if not is_as_asked:  # what was refused is not asked for any more
                write_artifact(run, REQUEST, to_saved(replace(request, processes=_planned_processes(plan))))
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
    if _planned_processes(earlier) != _planned_processes(anew):
        for part in ("settings", "choices"):
            kept[part] = {name: value for name, value in kept[part].items() if name not in SHARED_SETTINGS}
            kept[part] |= {name: value for name, value in anew[part].items() if name in SHARED_SETTINGS}
        kept["forecast"] = anew["forecast"]
        kept["processes_asked_after"] = int(attempt_folders(run)[-1].name)
    write_artifact(run, PLAN, {**anew, **kept})


def _planned_processes(plan: Mapping[str, Any]) -> int:
    return int(((plan.get("choices") or {}).get("processes") or {}).get("value") or 1)


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


@contextmanager
def _room(run: Path) -> Iterator[None]:
    """Say a full disk in words."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise MachineError(
            f"the disk is full: {run} could not be written",
            seen=f"{human_bytes(shutil.disk_usage(run).free)} free",
            try_next=("make room, then: holdfast resume " + str(run), "--out FOLDER, on another disk"),
            slug="disk-full",
        ) from error


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
    children = children or EngineChildren(run)

    def launch(attempt: Path, changes: Changes, resume: bool) -> Launch:
        return children.launch(attempt, settings, {**variables, **changes})

    return Job(
        kind=KIND,
        words=f"train {Path(request.data).name}",
        make_launch=launch,
        ladder=engine_ladder(settings),
        allow_changes=request.allow_changes,
        max_attempts=request.max_attempts,
        step_timeout_seconds=request.step_timeout,
        memory=Memory.open(),
        memory_key=memory_key(request, plan),
        set_aside=_set_aside(run, plan),
        describe_result=lambda result: describe_result(run, read_plan(run), result),
    )


def memory_key(request: TrainRequest, plan: Mapping[str, Any]) -> str:
    """Under which it is remembered what made a run finish: the same data, model and wishes about how to compute."""
    wishes = {name: getattr(request, name) for name in _WISHES}
    if (request.processes or 1) > 1:
        wishes["processes"] = request.processes
    model = str((plan.get("model") or {}).get("folder") or plan["settings"].get("model"))
    return key_of("train", str(Path(request.data).absolute()), model, str(plan.get("task")), repr(wishes))


def make_run_folder(request: TrainRequest) -> Path:
    """A folder of its own for the run, with the request in it."""
    try:
        run = take_folder(Path(request.out), "--out") if request.out else make_free_folder(_name_of(request.data))
        write_artifact(run, REQUEST, to_saved(replace(request, out=str(run))))
    except OSError as error:
        raise MachineError(
            f"the run folder {request.out or RUNS} cannot be written",
            seen=error.strerror or str(error),
            try_next=("--out FOLDER, at a place with room that you may write to",),
            slug="disk-full" if error.errno in (errno.ENOSPC, errno.EDQUOT) else "permission-denied",
        ) from error
    return run


def _name_of(data: str) -> str:
    return re.sub(r"[^\w.-]+", "-", Path(data).name.partition(".")[0]).strip("-.") or "run"


def _require_data(request: TrainRequest) -> None:
    """Refuse a path that leads nowhere before a folder is made for it."""
    for name in ("data", "validation", "test", "negatives"):
        path = getattr(request, name)
        if path and not os.path.lexists(path):
            guess = next(iter(difflib.get_close_matches(Path(path).name, _names_in(Path(path).parent), cutoff=0.8)), "")
            raise RequestError(
                f"there is no {path}",
                seen="" if name == "data" else f"given as --{name}",
                try_next=(f"{Path(path).parent / guess}, which is there",) if guess else (),
            )


def _names_in(folder: Path) -> list[str]:
    try:
        return sorted(path.name for path in folder.iterdir())[:1000]
    except OSError:
        return []


def _from_earlier(request: TrainRequest) -> TrainRequest:
    """Fill what was left open from the run that is gone on from: its model, and where none is given its data."""
    if not request.from_run:
        return request
    earlier = Path(request.from_run)
    if not (earlier / REQUEST).is_file():
        raise RequestError(f"--from {earlier} is no run folder", seen="it holds no request.json")
    if not any(model_folder(earlier).rglob("*.safetensors")):
        raise RequestError(
            f"--from {earlier} has no finished model", try_next=(f"holdfast resume {earlier}, to finish it first",)
        )
    before = read_saved(earlier / REQUEST)
    mine = {name: getattr(request, name) for name in TrainRequest.__dataclass_fields__}
    theirs = {name: getattr(before, name) for name in TrainRequest.__dataclass_fields__}
    plain = TrainRequest()
    taken = {name: value for name, value in theirs.items() if mine[name] == getattr(plain, name)}
    own = {"out", "from_run", "model", "preset"}
    if request.data:  # of other data the columns may be named otherwise
        own |= {"validation", "test", "negatives", "text_column", "label_column", "group_column", "encoding"}
        own |= {"delimiter", "header", "multi_label", "min_score"}
    task = {"task": read_plan(earlier).get("task")} if request.task is None else {}
    kept = {name: value for name, value in taken.items() if name not in own}
    return replace(request, **{**kept, **task, "model": str(model_folder(earlier))})
