"""The page of a run on another machine, shown from the store."""

import os
import time

import pytest

from holdfast.core.artifacts import write_artifact
from holdfast.core.runfolder import REPORT, attempt_folder, model_folder
from holdfast.service import remote_runs, replicator, staging
from holdfast.service.home import this_home
from holdfast.service.jobs.downloads import model_zip
from holdfast.service.remote_runs import fetch_run
from holdfast.service.replicator import Replicator, fetch_job, stored_run
from holdfast.service.stored_folder import StoredFolder
from tests.service.replicas import checkpoint, finish, hold, look, send_all, steps

pytestmark = pytest.mark.django_db


def test_finished_run_keeps_model_and_report(job, store, at):
    checkpoint(job, 3)
    send_all(store, job)
    finish(job)
    hold(job, 1)
    send_all(store, job)
    assert not [name for name in stored_run(store, job).newest().files if "/step-" in name]
    at("page")
    name, _ = model_zip(job)
    assert name == f"words-{job.pk}.zip"
    (model_folder(job.folder) / "model.safetensors").write_text("here")
    fetch_run(job)
    assert (model_folder(job.folder) / "model.safetensors").read_text() == "here", "it is not downloaded again"


def test_page_of_remote_run_shows_the_last_upload(job, store, at):
    checkpoint(job, 3)
    send_all(store, job)
    at("page")
    look(job)
    events = attempt_folder(job.folder, 1) / "events.jsonl"
    assert events.read_text() == "step 3\n"
    assert not (job.folder / "checkpoints").exists()
    at("one")
    checkpoint(job, 5)
    send_all(store, job)
    finish(job)
    send_all(store, job)
    at("page")
    look(job)
    assert events.read_text() == "step 5\n"
    assert (job.folder / REPORT).read_text() == "<p>"
    fetch_run(job)
    assert (model_folder(job.folder) / "model.safetensors").read_text() == "model"
    fetch_job(store, job, print)
    assert not (job.folder / remote_runs.SEEN).exists(), "a worker here does not go on in a folder for looking at"

    at("one")
    (job.folder / REPORT).unlink()
    look(job)
    assert not (job.folder / REPORT).exists()


def test_page_keeps_a_run_that_an_agent_downloads(job, store, at, monkeypatch):
    checkpoint(job, 3)
    send_all(store, job)
    at("two")
    look(job)
    assert (job.folder / remote_runs.SEEN).is_file()
    at("one")
    checkpoint(job, 5)
    send_all(store, job)
    at("two")
    newest = StoredFolder.newest

    def meanwhile(stored):
        monkeypatch.setattr(StoredFolder, "newest", newest)
        fetch_job(store, job, print)
        return newest(stored)

    monkeypatch.setattr(StoredFolder, "newest", meanwhile)
    look(job)
    assert steps(job) == [3, 5]
    assert (job.folder / replicator.FENCE).is_file()

    write_artifact(job.folder, remote_runs.SEEN, {"mark": "earlier"})
    look(job)
    assert steps(job) == [3, 5]
    Replicator(store, job, job.folder, print).close()
    assert not (job.folder / remote_runs.SEEN).exists()


def test_page_does_not_wait_for_another_pages_download(job, store, at):
    send_all(store, job)
    at("page")
    with remote_runs._lock_of(job):
        look(job)
    assert not job.folder.exists()
    look(job)
    assert job.folder.exists()


def test_leftover_uploads_are_swept_active_ones_kept(at):
    left = this_home().incoming / "store-left"
    (left / "files").mkdir(parents=True)
    (left / "held").touch()
    with staging.staging_folder() as working:
        for folder in (left, working.parent):
            os.utime(folder, (time.time() - 60,) * 2)
        staging.sweep_staging()
        assert working.is_dir()
    assert not left.exists()


def test_run_page_works_without_the_store(job, store, at, tmp_path, caplog):
    send_all(store, job)
    (tmp_path / "store").rename(tmp_path / "away")
    (tmp_path / "store").write_text("a file is in the way")
    at("page")
    look(job)
    assert not job.folder.exists()
