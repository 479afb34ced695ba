"""`holdfast jobs cleanup`: lost jobs are requeued, folders without a row are removed, everything else stays."""

from datetime import timedelta

import pytest
from django.contrib.auth.models import User
from django.db.models.functions import Now

from holdfast.service.home import this_home
from holdfast.service.jobs import leases
from holdfast.service.jobs.cleanup import clean_up
from holdfast.service.jobs.models import Job, Worker

pytestmark = pytest.mark.django_db


def test_lost_jobs_are_requeued_held_ones_stay():
    owner = User.objects.create_user("ada")
    worker = Worker.objects.create(name="box", host="box", devices=["cpu"])
    lost, held = (leases.submit(owner=owner, name="run", request={}) for _ in range(2))
    for job in (lost, held):
        leases.claim(job.pk, worker)
        job.folder.mkdir(parents=True)
    Job.objects.filter(pk=lost.pk).update(lease_until=Now() - timedelta(seconds=1))
    stray = this_home().runs / "987654"
    stray.mkdir()
    copies = [this_home().runs / name for name in ("12-copy", "12.old")]
    for copy in copies:
        copy.mkdir()
    said = clean_up()
    assert sorted(line.partition(":")[0] for line in said) == sorted([f"job {lost.pk}", "job 987654"])
    assert Job.objects.get(pk=lost.pk).state == "queued"
    assert not stray.exists()
    assert all(copy.exists() for copy in copies)
    assert held.folder.exists()
    assert Job.objects.get(pk=held.pk).state == "running"
    assert Job.objects.get(pk=lost.pk).state == "queued"
