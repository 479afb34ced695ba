"""The dispatcher: slots, dead agents, leases of others. Agents are stand-ins."""

import socket
from datetime import timedelta

import pytest
from django.contrib.auth.models import User
from django.db.models.functions import Now

from holdfast.core.facts import Gpu, MachineFacts
from holdfast.service import dispatcher as dispatchers
from holdfast.service.dispatcher import Dispatcher
from holdfast.service.jobs import leases, workers
from holdfast.service.jobs.models import Job, Worker
from holdfast.service.jobs.workers import WorkerCheckup

pytestmark = pytest.mark.django_db


class Process:
    """An agent that lives until told otherwise."""

    code = None

    def poll(self):
        return self.code


@pytest.fixture
def started(monkeypatch):
    found = {}

    def start(job_id, claimed):
        found[job_id] = Process()
        return found[job_id]

    monkeypatch.setattr(dispatchers, "start_agent", start)
    return found


@pytest.fixture
def worker():
    return workers.register(2, "box")


def queue(count):
    owner, _ = User.objects.get_or_create(username="ada")
    return [leases.submit(owner=owner, name="run", request={}) for _ in range(count)]


def states():
    return list(Job.objects.order_by("pk").values_list("state", flat=True))


def test_it_takes_as_many_jobs_as_it_has_slots(started, worker):
    queue(3)
    dispatcher = Dispatcher(worker)
    dispatcher.tick()
    dispatcher.tick()
    assert states() == ["running", "running", "queued"]
    assert len(started) == 2


def test_new_dispatcher_counts_surviving_agents(started, worker):
    queue(3)
    Dispatcher(worker).tick()
    Dispatcher(workers.register(2, "box")).tick()
    assert states() == ["running", "running", "queued"]


def test_job_of_a_dead_agent_is_retaken_immediately(started, worker):
    (job,) = queue(1)
    dispatcher = Dispatcher(worker)
    dispatcher.tick()
    started[job.pk].code = -9
    dispatcher.tick()
    assert Job.objects.get(pk=job.pk).claims == 2


def test_job_of_dead_agent_waits_for_its_supervisor(started, worker, monkeypatch):
    (job,) = queue(1)
    dispatcher = Dispatcher(worker)
    dispatcher.tick()
    started[job.pk].code = -9
    monkeypatch.setattr(dispatchers, "holder", lambda run: object())
    dispatcher.tick()
    assert Job.objects.get(pk=job.pk).claims == 1
    monkeypatch.setattr(dispatchers, "holder", lambda run: None)
    dispatcher.tick()
    assert Job.objects.get(pk=job.pk).claims == 2


def test_finished_agent_is_forgotten(started, worker):
    (job,) = queue(1)
    dispatcher = Dispatcher(worker)
    dispatcher.tick()
    leases.release(job.pk, Job.objects.get(pk=job.pk).claim, "finished")
    started[job.pk].code = 0
    dispatcher.tick()
    assert states() == ["finished"]
    assert not dispatcher._agents


def test_claim_is_held_for_a_slowly_starting_agent(started, worker):
    (job,) = queue(1)
    dispatcher = Dispatcher(worker)
    dispatcher.tick()
    Job.objects.filter(pk=job.pk).update(lease_until=Now() - timedelta(seconds=1))
    dispatcher._hold_for_starting()
    assert leases.requeue_lost() == []


def test_leases_of_other_machines_are_looked_after_too(started, worker):
    (job,) = queue(1)
    gone = Worker.objects.create(name="gone", host="gone", devices=["cpu"])
    leases.claim(job.pk, gone)
    Job.objects.filter(pk=job.pk).update(lease_until=Now() - timedelta(seconds=1))
    Dispatcher(worker).tick()
    row = Job.objects.get(pk=job.pk)
    assert (row.state, row.worker) == ("running", worker)


def test_with_no_slots_nothing_is_taken(started):
    queue(1)
    Dispatcher(workers.register(0, "page")).tick()
    assert states() == ["queued"]


def test_leaving_worker_claims_no_more_jobs(started, worker):
    queue(1)
    dispatcher = Dispatcher(worker)
    dispatcher._leave()
    dispatcher.tick()
    assert states() == ["queued"]


@pytest.mark.parametrize(("kind", "devices"), [("cuda", ["cpu", "cuda"]), ("rocm", ["cpu", "cuda"]), ("xpu", ["cpu"])])
def test_devices_are_those_that_doctor_found(kind, devices):
    assert workers.devices_of(WorkerCheckup(facts=MachineFacts(gpus=(Gpu(name="x", kind=kind),)))) == devices
    assert workers.devices_of(WorkerCheckup(error="doctor did not answer")) == ["cpu"]


def test_failed_agent_start_keeps_job_and_dispatcher(worker, started, monkeypatch):
    (job,) = queue(1)

    def refuse(*_):
        raise OSError("no memory for another process")

    dispatcher = Dispatcher(worker)
    monkeypatch.setattr(dispatchers, "start_agent", refuse)
    dispatcher.tick_safely()
    row = Job.objects.get(pk=job.pk)
    assert (row.state, row.claims) == ("queued", 0)
    monkeypatch.setattr(dispatchers, "start_agent", lambda *_: Process())
    dispatcher.tick_safely()
    assert states() == ["running"]


@pytest.mark.parametrize(("broker", "is_one"), [("", True), ("redis://broker", False)])
def test_serve_with_broker_is_not_a_worker(monkeypatch, settings, broker, is_one):
    settings.BROKER_URL, settings.RUNS_AT_ONCE = broker, 0
    monkeypatch.setattr(workers, "check_up", lambda worker: None)
    monkeypatch.setattr(Dispatcher, "run", lambda self: None)
    workers.register(4)
    dispatchers.main()
    assert (Worker.objects.count() == 1) == is_one
    assert Worker.objects.get(name=socket.gethostname()).slots == (0 if is_one else 4)
