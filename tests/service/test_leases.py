"""Every change of a job's state is one conditional update: of two processes, the second changes nothing."""

import uuid
from datetime import timedelta

import pytest
from django.contrib.auth.models import User
from django.db.models.functions import Now
from django.utils import timezone

from holdfast.service import broker
from holdfast.service.home import this_home
from holdfast.service.jobs import leases
from holdfast.service.jobs.models import Job, Notice, Worker
from holdfast.service.jobs.notices import make_hook

pytestmark = pytest.mark.django_db


@pytest.fixture
def owner():
    return User.objects.create_user("ada")


@pytest.fixture
def worker():
    return Worker.objects.create(name="box", host="box", devices=["cpu"])


def queue(owner, **fields):
    return leases.submit(owner=owner, name="run", request={"max_steps": 3}, **fields)


def let_run_out(job):
    Job.objects.filter(pk=job.pk).update(lease_until=Now() - timedelta(seconds=1))


def state_of(job):
    return Job.objects.get(pk=job.pk).state


def test_a_job_is_claimed_once(owner, worker):
    job = queue(owner)
    assert leases.claim(job.pk, worker) is not None
    assert leases.claim(job.pk, worker) is None
    row = Job.objects.get(pk=job.pk)
    assert (row.state, row.claims, row.worker) == ("running", 1, worker)
    assert 50 < (row.lease_until - timezone.now()).total_seconds() <= 61


def test_the_highest_priority_comes_first_then_the_oldest(owner, worker):
    first, second, urgent = queue(owner), queue(owner), queue(owner, priority=5)
    taken = [leases.claim_next(worker)[0] for _ in range(3)]
    assert taken == [urgent.pk, first.pk, second.pk]
    assert leases.claim_next(worker) is None


def test_only_a_worker_that_has_the_device_takes_the_job(owner, worker):
    job = queue(owner, device="cuda")
    assert leases.claim_next(worker) is None
    assert leases.claim(job.pk, worker) is None
    card = Worker.objects.create(name="card", host="card", devices=["cpu", "cuda"])
    assert leases.claim_next(card)[0] == job.pk


def test_expired_lease_is_requeued_and_holder_cannot_write(owner, worker):
    job = queue(owner)
    claimed = leases.claim(job.pk, worker)
    assert leases.requeue_lost() == []
    let_run_out(job)
    assert leases.requeue_lost() == [job.pk]
    assert leases.requeue_lost() == []
    assert state_of(job) == "queued"
    assert not leases.renew(job.pk, claimed, step=7)
    assert leases.stop_asked(job.pk, claimed) is None
    assert not leases.release(job.pk, claimed, "finished")
    assert not leases.hand_back(job.pk, claimed)
    again = leases.claim(job.pk, worker)
    assert not leases.release(job.pk, claimed, "failed")
    assert leases.release(job.pk, again, "finished", sentence="finished, 3 steps")
    assert state_of(job) == "finished"


def test_a_renewal_in_time_keeps_the_job(owner, worker):
    job = queue(owner)
    claimed = leases.claim(job.pk, worker)
    let_run_out(job)
    assert leases.renew(job.pk, claimed, step=4, phase="step")  # nobody has put it back yet
    assert leases.requeue_lost() == []
    assert Job.objects.get(pk=job.pk).step == 4


def test_renewal_during_reaping_keeps_the_job(owner, worker, monkeypatch):
    job = queue(owner)
    claimed = leases.claim(job.pk, worker)
    let_run_out(job)
    really = leases.lose

    def renew_first(*given, **how):
        assert leases.renew(job.pk, claimed)
        return really(*given, **how)

    monkeypatch.setattr(leases, "lose", renew_first)
    assert leases.requeue_lost() == []
    assert leases.stop_asked(job.pk, claimed) is False


def test_a_job_that_loses_its_holder_too_often_has_failed(owner, worker):
    job, hook = queue(owner), make_hook(owner, "email", "ada@example.org")
    for _ in range(leases.MOST_CLAIMS - 1):
        assert leases.claim(job.pk, worker)
        let_run_out(job)
        assert leases.requeue_lost() == [job.pk]
    leases.claim(job.pk, worker)
    let_run_out(job)
    assert leases.requeue_lost() == []
    row = Job.objects.get(pk=job.pk)
    assert row.state == "failed"
    assert (row.claims, row.claim) == (leases.MOST_CLAIMS, None)
    assert Notice.objects.get(hook=hook).event == "failed"
    assert leases.resume(job)
    assert Job.objects.get(pk=job.pk).claims == 0


def test_requeued_job_shows_no_old_phase(owner, worker):
    job = queue(owner)
    for put_back in (
        lambda claimed: leases.hand_back(job.pk, claimed),
        lambda claimed: leases.lose(job.pk, claimed),
        lambda claimed: leases.release(job.pk, claimed, "stopped") and leases.resume(job),
    ):
        claimed = leases.claim(job.pk, worker)
        assert leases.renew(job.pk, claimed, step=4, steps=9, phase="save", eta_seconds=3.0)
        assert put_back(claimed)
        row = Job.objects.get(pk=job.pk)
        assert (row.state, row.phase, row.eta_seconds, row.step) == ("queued", "", None, 4)
    Job.objects.filter(pk=job.pk).update(phase="stopped")  # as earlier versions left it
    assert leases.claim(job.pk, worker)
    assert Job.objects.get(pk=job.pk).phase == ""


@pytest.mark.parametrize(("state", "go_on"), [("planned", leases.start), ("stopped", leases.resume)])
def test_time_before_approval_is_not_run_time(owner, worker, state, go_on):
    job = queue(owner)
    leases.release(job.pk, leases.claim(job.pk, worker), state)
    Job.objects.filter(pk=job.pk).update(started=timezone.now() - timedelta(hours=1))
    assert go_on(job)
    assert Job.objects.get(pk=job.pk).started is None
    claimed = leases.claim(job.pk, worker)
    began = Job.objects.get(pk=job.pk).started
    assert timezone.now() - began < timedelta(minutes=1)
    leases.lose(job.pk, claimed)
    leases.claim(job.pk, worker)
    assert Job.objects.get(pk=job.pk).started == began  # a lost holder's time is the run's


def test_handing_back_does_not_count_as_a_loss(owner, worker):
    job = queue(owner)
    assert leases.hand_back(job.pk, leases.claim(job.pk, worker))
    row = Job.objects.get(pk=job.pk)
    assert (row.state, row.claims, row.claim, row.worker) == ("queued", 0, None, None)


def test_waiting_job_stops_immediately_running_one_is_asked(owner, worker):
    waiting, running = queue(owner), queue(owner)
    claimed = leases.claim(running.pk, worker)
    assert leases.ask_stop(waiting)
    assert state_of(waiting) == "stopped"
    assert leases.stop_asked(running.pk, claimed) is False
    assert leases.ask_stop(running)
    assert leases.stop_asked(running.pk, claimed) is True
    assert leases.release(running.pk, claimed, "stopped")
    assert not leases.ask_stop(running)
    assert leases.resume(running)
    row = Job.objects.get(pk=running.pk)
    assert (row.state, row.stop_asked) == ("queued", False)


def test_a_plan_is_started_once_and_only_a_plan(owner, worker):
    job = queue(owner, goal="plan")
    assert not leases.start(job)
    leases.release(job.pk, leases.claim(job.pk, worker), "planned")
    assert leases.start(job)
    assert not leases.start(job)
    row = Job.objects.get(pk=job.pk)
    assert (row.state, row.goal) == ("queued", "model")


def test_a_finished_job_is_neither_resumed_nor_claimed(owner, worker):
    job = queue(owner)
    leases.release(job.pk, leases.claim(job.pk, worker), "finished")
    assert not leases.resume(job)
    assert not leases.start(job)
    assert leases.claim(job.pk, worker) is None


def test_running_job_is_not_deleted_others_completely(owner, worker, home, django_capture_on_commit_callbacks):
    job = queue(owner)
    claimed = leases.claim(job.pk, worker)
    assert not leases.delete(job)
    leases.release(job.pk, claimed, "stopped")
    agents = this_home().agents
    agents.mkdir(parents=True)
    left = [job.folder / "request.json", agents / f"{job.pk}.json", agents / f"{job.pk}.log"]
    job.folder.mkdir(parents=True)
    for file in left:
        file.write_text("{}")
    with django_capture_on_commit_callbacks(execute=True):
        assert leases.delete(job)
    assert not Job.objects.filter(pk=job.pk).exists()
    assert not any(file.exists() for file in left)


def test_a_wrong_claim_writes_nothing(owner, worker):
    job = queue(owner)
    leases.claim(job.pk, worker)
    assert not leases.renew(job.pk, uuid.uuid4(), step=9)
    assert not leases.release(job.pk, uuid.uuid4(), "finished")
    assert Job.objects.get(pk=job.pk).step == 0


def test_device_job_is_always_announced_to_matching_workers(
    owner, settings, monkeypatch, django_capture_on_commit_callbacks
):
    told = []
    settings.BROKER_URL = "redis://broker"
    monkeypatch.setattr(broker, "announce", lambda job_id, device: told.append(device))
    card = Worker.objects.create(name="card", host="card", devices=["cpu", "cuda"])
    with django_capture_on_commit_callbacks(execute=True):
        job = queue(owner, device="cuda")
        leases.hand_back(job.pk, leases.claim(job.pk, card))
        leases.lose(job.pk, leases.claim(job.pk, card))
        leases.release(job.pk, leases.claim(job.pk, card), "stopped")
        leases.resume(job)
    assert told == ["cuda"] * 4
