"""This machine as a worker: its row, its heartbeat and its checkup."""

import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable

import msgspec
from django.db import Error as DatabaseError
from django.db import connections
from django.db.models.functions import Now

import holdfast
from holdfast.core.facts import MachineFacts
from holdfast.core.plan import Remedy
from holdfast.core.records import to_record
from holdfast.service.jobs.models import Worker

BEAT_SECONDS = 5.0
_DOCTOR_SECONDS, _AGAIN_SECONDS = 300.0, 2.0


class WorkerFinding(msgspec.Struct, frozen=True, kw_only=True):
    """A finding of the checkup."""

    slug: str
    severity: str = "note"  # "blocker", "warning" or "note"
    title: str = ""
    seen: str = ""
    why: str = ""
    remedies: tuple[Remedy, ...] = ()


class WorkerCheckup(msgspec.Struct, frozen=True, kw_only=True):
    """What `holdfast doctor --json` printed on a worker, or why it printed nothing."""

    facts: MachineFacts = MachineFacts()
    findings: tuple[WorkerFinding, ...] = ()
    unanswered: tuple[str, ...] = ()
    error: str = ""


def register(slots: int, name: str = "") -> Worker:
    """The row of this worker; its devices are those of the last start until the new checkup."""
    host = socket.gethostname()
    known = {"host": host, "slots": slots, "version": holdfast.__version__, "started": Now(), "beat": Now()}
    worker, _ = Worker.objects.update_or_create(name=name or host, defaults=known, create_defaults=known)
    worker.refresh_from_db()
    if not worker.devices:
        worker.devices = ["cpu"]
        Worker.objects.filter(pk=worker.pk).update(devices=worker.devices)
    return worker


def register_patiently(slots: int, name: str = "", say: Callable[[str], None] = print) -> Worker:
    """The row of this worker, as soon as the database responds."""
    while True:
        try:
            return register(slots, name)
        except DatabaseError as error:
            say(f"waiting for the database: {str(error).strip()}")
            connections.close_all()
            time.sleep(_AGAIN_SECONDS)


def beat(worker: Worker) -> None:
    """Record a heartbeat of this worker."""
    Worker.objects.filter(pk=worker.pk).update(beat=Now())


def check_up(worker: Worker) -> threading.Thread:
    """Check this machine in a child process and a thread; the row gets the result."""
    thread = threading.Thread(target=_check_up, args=(worker,), daemon=True)
    thread.start()
    return thread


def read_checkup(worker: Worker) -> WorkerCheckup:
    """What doctor found on this worker; empty before the first checkup."""
    return to_record(worker.checkup, WorkerCheckup) or WorkerCheckup()


def devices_of(checkup: WorkerCheckup) -> list[str]:
    """The devices that runs can use."""
    kinds = {"cuda" if gpu.kind == "rocm" else gpu.kind for gpu in checkup.facts.gpus}
    return ["cpu", *sorted(kinds & {"cuda", "mps"})]


def _check_up(worker: Worker) -> None:
    try:
        asked = subprocess.run(
            [sys.executable, "-m", "holdfast", "doctor", "--json"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_DOCTOR_SECONDS,
            check=False,
        )
        checkup = json.loads(asked.stdout)
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        checkup = {"error": f"the checkup failed: {error}"}
    devices = devices_of(to_record(checkup, WorkerCheckup) or WorkerCheckup())
    try:
        Worker.objects.filter(pk=worker.pk).update(checkup=checkup, checked=Now(), devices=devices)
        worker.devices = devices
    except DatabaseError as error:
        print(f"the checkup could not be saved: {error}", flush=True)
    finally:
        connections.close_all()
