"""Makes the folder of a new training run: completes the request from an earlier run, checks it and writes it down.

Reads: the request. Leaves: request.json.
"""

import os
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

from holdfast.core.errors import RequestError
from holdfast.core.path_guess import did_you_mean, is_url
from holdfast.core.progress import Progress, no_progress
from holdfast.core.records import RunPlan, read_record, write_request
from holdfast.core.runfolder import FORECAST, NODES, PLAN, PROOF, REQUEST, model_folder
from holdfast.core.settings import (
    BATCH_PARTS,
    SETTINGS,
    TrainRequest,
    names_with,
    nodes_of,
    requested_batch_size,
    with_preset,
)
from holdfast.data.download import local_copy
from holdfast.runs.finished_model import find_model
from holdfast.runs.join import join_training
from holdfast.runs.new_folder import new_folder
from holdfast.runs.nodes import read_leader
from holdfast.runs.run_path import require_request, require_run
from holdfast.runs.trackers import require_trackers


def with_local_data(request: TrainRequest, on_progress: Progress = no_progress) -> TrainRequest:
    """The request with the path of a downloaded file in place of each URL."""
    given = {name: str(getattr(request, name) or "") for name, one in SETTINGS.items() if "url" in one.traits}
    urls = {name: value for name, value in given.items() if is_url(value)}
    if urls and request.offline:
        raise RequestError("a URL cannot be downloaded offline", found=next(iter(urls.values())), setting="offline")
    local: dict[str, Any] = {name: str(local_copy(url, on_progress)) for name, url in urls.items()}
    return replace(request, **local)


def start_train(request: TrainRequest) -> Path:
    """Make the folder of a new run with the request in it; with several machines, later ones join the first."""
    request = with_preset(_from_earlier(request))
    _require_data(request)
    require_trackers(request.report_to)
    return join_training(request) if nodes_of(request) > 1 else make_run_folder(request)


def discard(run: Path) -> None:
    """Remove the folder of a run that was refused before it began; a folder in which anything was trained is kept."""
    if any((run / name).exists() for name in ("attempts", "checkpoints", "model", "proof")):
        return
    if not (run / NODES).is_dir():
        shutil.rmtree(run, ignore_errors=True)
    elif not read_leader(run):  # the other machines still read how the run ended
        for name in (REQUEST, PLAN, PROOF, FORECAST):
            (run / name).unlink(missing_ok=True)


def make_run_folder(request: TrainRequest) -> Path:
    """Make a new folder for the run, with the request in it."""
    with new_folder(Path(request.out) if request.out else None, _name_of(request.data), "--out") as run:
        write_request(run, replace(request, out=str(run)))
    return run


def _name_of(data: str) -> str:
    return re.sub(r"[^\w.-]+", "-", Path(data).name.partition(".")[0]).strip("-.") or "run"


def _require_data(request: TrainRequest) -> None:
    """Refuse a path that does not exist before a folder is made for the run."""
    for name in ("data", "validation", "test", "negatives"):
        path = getattr(request, name)
        if path and not os.path.lexists(path):
            raise RequestError(
                f"file not found: {path}",
                found="" if name == "data" else f"given as --{name}",
                try_next=did_you_mean(Path(path)),
            )


def _from_earlier(request: TrainRequest) -> TrainRequest:
    """Complete a request that continues from an earlier run: with its model and, by default, its data."""
    if not request.from_run:
        return request
    earlier = Path(request.from_run)
    require_run(earlier)
    find_model(earlier)
    before, plan = require_request(earlier), read_record(earlier, RunPlan)
    if not isinstance(before, TrainRequest):
        raise RequestError(f"{earlier} holds a command, not a training run", setting="from_run")
    taken = {name: getattr(before, name) for name, one in SETTINGS.items() if getattr(request, name) == one.default}
    own = names_with("own")
    if request.data:  # other data may have other columns
        own |= names_with("file")
    if requested_batch_size(request):
        own |= {"batch_size", *BATCH_PARTS}
    task = {"task": plan.task} if plan and request.task is None else {}
    kept = {name: value for name, value in taken.items() if name not in own}
    return replace(request, **{**kept, **task, "model": str(model_folder(earlier))})
