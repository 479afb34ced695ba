"""Data that is not in the store yet is sent later, and deleted data is removed from it."""

import os

import pytest

from holdfast.core.artifacts import write_artifact
from holdfast.core.runfolder import REPORT, model_folder
from holdfast.runs.process_identity import describe_process
from holdfast.service import outbox as unsent
from holdfast.service.home import this_home
from holdfast.service.jobs import datasets, leases, registry
from holdfast.service.jobs.job_folder import make_folder
from holdfast.service.jobs.models import TrainedModel
from holdfast.service.object_store import StoreError
from holdfast.service.outbox import send_outbox
from holdfast.service.replicator import Replicator, fetch_job, stored_run
from tests.service.replicas import checkpoint, finish, hold, send_all, until

pytestmark = pytest.mark.django_db


def test_run_from_another_run_downloads_its_model(job, store, at, ada, data):
    finish(job)
    write_artifact(model_folder(job.folder), "config.json", {"architectures": ["BertForSequenceClassification"]})
    send_all(store, job)
    second = leases.submit(owner=ada, name="more", dataset=data, request={"task": "classify", "from_run": job.pk})
    at("two")
    fetch_job(store, second, print)
    assert (model_folder(job.folder) / "model.safetensors").read_text() == "model"
    make_folder(second)


def test_worker_waits_for_missing_model_or_data(job, store, at, ada, data):
    second = leases.submit(owner=ada, name="more", dataset=data, request={"task": "classify", "from_run": job.pk})
    at("two")
    with pytest.raises(StoreError, match=f"the model of run {job.pk} is not in the store yet"):
        fetch_job(store, second, print)
    store.drop(f"{store.root}/datasets")
    at("three")
    with pytest.raises(StoreError, match=f"dataset {data.pk} is not in the store yet"):
        fetch_job(store, job, print)


def test_store_outage_does_not_delay_the_run(job, store, tmp_path):
    checkpoint(job, 3)
    (tmp_path / "store").rename(tmp_path / "away")
    (tmp_path / "store").write_text("a file is in the way")
    said = []
    send_all(store, job, said)
    assert "not sent yet: HOLDFAST_STORE=file://" in said[0]
    (tmp_path / "store").unlink()

    write_artifact(this_home().agents, f"{job.pk}.json", describe_process(os.getpid()))
    send_outbox(store)
    assert stored_run(store, job).newest() is None, "its agent lives and does it"
    (this_home().agents / f"{job.pk}.json").unlink()
    send_outbox(store)
    assert stored_run(store, job).newest() is not None
    assert not list(this_home().agents.glob("*.unsent"))


def test_pending_upload_does_not_overwrite_newer_work(job, store, at):
    checkpoint(job, 3)
    Replicator(store, job, job.folder, print).close()
    at("two")
    fetch_job(store, job, print)
    hold(job, 1)
    checkpoint(job, 9)
    send_all(store, job)
    newest = stored_run(store, job).newest()
    at("one")
    send_outbox(store)
    assert stored_run(store, job).newest() == newest
    assert not list(this_home().agents.glob("*.unsent"))


def test_unsendable_item_does_not_block_others(job, store, at, data, tmp_path):
    unsent._sent_datasets.clear()
    (tmp_path / "store" / "datasets").rename(tmp_path / "away")
    (tmp_path / "store" / "datasets").write_text("a file is in the way")
    checkpoint(job, 3)
    Replicator(store, job, job.folder, print).close()
    with pytest.raises(StoreError):
        send_outbox(store)
    assert stored_run(store, job).newest() is not None
    assert not list(this_home().agents.glob("*.unsent"))


def test_mark_of_a_later_agent_stays(job, store, monkeypatch):
    checkpoint(job, 3)
    Replicator(store, job, job.folder, print).close()
    send = unsent.send

    def slowly(*given):
        send(*given)
        Replicator(store, hold(job, 1), job.folder, print).close()

    monkeypatch.setattr(unsent, "send", slowly)
    send_outbox(store)
    assert list(this_home().agents.glob("*.unsent"))


@pytest.mark.django_db(transaction=True)
def test_deletion_also_removes_from_the_store(job, store, ada, data):
    checkpoint(job, 3)
    finish(job)
    send_all(store, job)
    stored = stored_run(store, job)
    model = TrainedModel.objects.create(owner=ada, job=job, name="words", task="classify")
    registry.remove(model)
    until(lambda: not any("model/" in name for name in stored.newest().files))
    assert REPORT in stored.newest().files
    assert leases.delete(job)
    until(lambda: stored.newest() is None)
    datasets.remove(data, ada)
    until(lambda: not store.files.find(store.root))
    until(lambda: not list(this_home().agents.glob("*.unwanted")))


@pytest.mark.django_db(transaction=True)
def test_deletion_during_store_outage_happens_later(job, store, tmp_path, capsys):
    send_all(store, job)
    (tmp_path / "store").rename(tmp_path / "away")
    (tmp_path / "store").write_text("a file is in the way")
    assert leases.delete(job)
    until(lambda: "not deleted from the store yet" in capsys.readouterr().out)
    (tmp_path / "store").unlink()
    (tmp_path / "away").rename(tmp_path / "store")
    assert stored_run(store, job).newest() is not None
    send_outbox(store)
    assert stored_run(store, job).newest() is None
    assert not list(this_home().agents.glob("*.unwanted"))
