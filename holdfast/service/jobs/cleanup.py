"""Does by hand what the reapers do by themselves: puts back lost jobs, ends what runs and is held by nobody."""

import shutil
from collections.abc import Iterable
from pathlib import Path

from django.db.models.functions import Now

from holdfast.core.artifacts import read_artifact
from holdfast.runs.lease import holder
from holdfast.runs.process_identity import end_process, find_process
from holdfast.service.home import this_home
from holdfast.service.jobs import leases
from holdfast.service.jobs.models import Job, JobState

_SAVE_SECONDS = 60.0


def clean_up() -> list[str]:
    """Put things right on this machine and in the table; say what was done, a line each."""
    said = [f"job {job_id}: its holder is gone; queued again" for job_id in leases.requeue_lost()]
    home = this_home()
    for job_id, folder in _numbered(home.runs.glob("[0-9]*")):
        if (found := holder(folder)) and not _is_held(job_id):
            end_process(found, _SAVE_SECONDS)
            said.append(f"job {job_id}: supervisor {found.pid} was ended; its job had no holder")
        if not _is_known(job_id):
            shutil.rmtree(folder, ignore_errors=True)
            said.append(f"job {job_id}: its row is gone; its folder was removed")
    for job_id, file in _numbered(home.agents.glob("[0-9]*.json")):
        if (agent := find_process(read_artifact(file))) and not _is_held(job_id):
            end_process(agent, _SAVE_SECONDS)
            said.append(f"job {job_id}: agent {agent.pid} was ended; its claim is gone")
        if not _is_known(job_id):
            file.unlink(missing_ok=True)
            file.with_suffix(".log").unlink(missing_ok=True)
    return said


def _numbered(found: Iterable[Path]) -> list[tuple[int, Path]]:
    """Those that are named by a job's number alone; a copy that somebody put beside them is theirs."""
    return sorted((int(path.stem), path) for path in found if path.stem.isdecimal() and path.suffix in ("", ".json"))


def _is_held(job_id: int) -> bool:
    return Job.objects.filter(pk=job_id, state=JobState.RUNNING, lease_until__gte=Now()).exists()


def _is_known(job_id: int) -> bool:
    return Job.objects.filter(pk=job_id).exists()
