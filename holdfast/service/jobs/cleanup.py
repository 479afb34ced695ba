"""`holdfast jobs cleanup`: requeues lost jobs, and ends processes that work on a job without holding it."""

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
    """Clean up this machine and the table; return what was done, one line each."""
    said = [f"job {job_id}: lease expired; queued again" for job_id in leases.requeue_lost()]
    home = this_home()
    for job_id, folder in _numbered(home.runs.glob("[0-9]*")):
        if (found := holder(folder)) and not _is_held(job_id):
            end_process(found, _SAVE_SECONDS)
            said.append(f"job {job_id}: ended supervisor {found.pid}, whose job had no holder")
        if not _is_known(job_id):
            shutil.rmtree(folder, ignore_errors=True)
            said.append(f"job {job_id}: removed its folder; the job was deleted")
    for job_id, file in _numbered(home.agents.glob("[0-9]*.json")):
        if (agent := find_process(read_artifact(file))) and not _is_held(job_id):
            end_process(agent, _SAVE_SECONDS)
            said.append(f"job {job_id}: ended agent {agent.pid}, whose claim was lost")
        if not _is_known(job_id):
            file.unlink(missing_ok=True)
            file.with_suffix(".log").unlink(missing_ok=True)
    return said


def _numbered(found: Iterable[Path]) -> list[tuple[int, Path]]:
    """Entries named only by a job's number; other files next to them are not ours."""
    return sorted((int(path.stem), path) for path in found if path.stem.isdecimal() and path.suffix in ("", ".json"))


def _is_held(job_id: int) -> bool:
    return Job.objects.filter(pk=job_id, state=JobState.RUNNING, lease_until__gte=Now()).exists()


def _is_known(job_id: int) -> bool:
    return Job.objects.filter(pk=job_id).exists()
