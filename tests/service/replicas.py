"""A job on the disks of two machines with a store between them; no run is started."""

import hashlib
import time
from datetime import UTC, datetime, timedelta

from holdfast.core.artifacts import write_artifact
from holdfast.core.runfolder import MANIFEST, REPORT, RESULT, attempt_folder, model_folder
from holdfast.service import remote_runs as fetched
from holdfast.service.jobs.job_folder import make_folder
from holdfast.service.jobs.models import Job
from holdfast.service.remote_runs import fetch_record
from holdfast.service.replicator import Replicator

NOW = datetime(2026, 1, 2, tzinfo=UTC)


def hold(job, minutes):
    """A claim, so many minutes later by the database's clock."""
    job.lease_until = NOW + timedelta(minutes=minutes)
    make_folder(job)
    return job


def checkpoint(job, step):
    folder = job.folder / "checkpoints" / f"step-{step:09d}"
    folder.mkdir(parents=True)
    (folder / "weights.safetensors").write_bytes(content := f"weights {step}".encode())
    write_artifact(
        folder, MANIFEST, {"step": step, "sha256": {"weights.safetensors": hashlib.sha256(content).hexdigest()}}
    )
    attempt_folder(job.folder, 1).mkdir(parents=True, exist_ok=True)
    (attempt_folder(job.folder, 1) / "events.jsonl").write_text(f"step {step}\n")


def finish(job):
    model_folder(job.folder).mkdir()
    (model_folder(job.folder) / "model.safetensors").write_text("model")
    (job.folder / REPORT).write_text("<p>")
    write_artifact(job.folder, RESULT, {"state": "finished"})
    Job.objects.filter(pk=job.pk).update(state="finished")
    job.state = "finished"


def send_all(store, job, said=None):
    one = Replicator(store, job, job.folder, (said if said is not None else []).append)
    one.send_last()


def look(job):
    fetched._asked.clear()
    fetch_record(job)


def steps(job):
    return sorted(int(folder.name.removeprefix("step-")) for folder in (job.folder / "checkpoints").glob("step-*"))


def until(is_so):
    deadline = time.monotonic() + 60
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.05)
