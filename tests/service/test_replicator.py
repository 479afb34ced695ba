"""A run is copied to the store and to another machine, also when files are damaged."""

import shutil

import pytest

from holdfast.core.artifacts import read_artifact
from holdfast.core.runfolder import REQUEST, attempt_folder, model_folder
from holdfast.service.remote_runs import fetch_run
from holdfast.service.replicator import Replicator, fetch_job, stored_run
from tests.service.replicas import checkpoint, finish, hold, send_all, steps

pytestmark = pytest.mark.django_db


def test_another_machine_gets_data_and_run_with_local_paths(job, store, at):
    checkpoint(job, 3)
    checkpoint(job, 5)
    send_all(store, job)
    at("two")
    fetch_job(store, job, print)
    assert job.dataset.path.read_text() == "text,label\na,b\n"
    assert steps(job) == [3, 5]
    assert read_artifact(job.folder / REQUEST)["data"] == str(job.dataset.path)
    assert (attempt_folder(job.folder, 1) / "events.jsonl").read_text() == "step 5\n"


def test_newer_of_local_and_stored_folder_wins(job, store, at):
    checkpoint(job, 3)
    send_all(store, job)
    at("two")
    fetch_job(store, job, print)
    hold(job, 1)
    checkpoint(job, 9)
    send_all(store, job)
    at("one")
    fetch_job(store, job, print)
    assert steps(job) == [3, 9]
    hold(job, 2)
    checkpoint(job, 11)
    Replicator(store, job, job.folder, print).close()  # it died before it could send
    fetch_job(store, job, print)
    assert steps(job) == [3, 9, 11]


def test_late_upload_does_not_hide_newer_work(job, store, at):
    checkpoint(job, 3)
    late = Replicator(store, job, job.folder, print)
    at("two")
    fetch_job(store, job, print)
    hold(job, 1)
    checkpoint(job, 9)
    send_all(store, job)
    late.send_last()
    at("three")
    fetch_job(store, job, print)
    assert steps(job) == [9]


def test_checkpoint_damaged_in_the_store_is_skipped_and_reported(job, store, at, tmp_path):
    checkpoint(job, 3)
    checkpoint(job, 5)
    send_all(store, job)
    copy = stored_run(store, job).newest()
    name = copy.files["checkpoints/step-000000005/weights.safetensors"]
    (damaged,) = (tmp_path / "store").rglob(name)
    damaged.write_text("weights 6")
    said = []
    at("two")
    fetch_job(store, job, said.append)
    assert steps(job) == [3]
    assert "checkpoints/step-000000005/weights.safetensors is damaged in the store" in said[0]


def test_damaged_model_is_not_downloaded(job, store, at, tmp_path):
    finish(job)
    (model_folder(job.folder) / "0_part").mkdir()
    (model_folder(job.folder) / "0_part" / "words.txt").write_text("words")
    send_all(store, job)
    copy = stored_run(store, job).newest()
    (damaged,) = (tmp_path / "store").rglob(copy.files["model/0_part/words.txt"])
    damaged.write_text("other")
    at("page")
    fetch_run(job)
    assert not model_folder(job.folder).exists(), "weights without their words are no model"


def test_checkpoint_is_uploaded_although_the_run_deletes_it(job, store, monkeypatch):
    checkpoint(job, 3)
    write, earlier = store.write, job.folder / "checkpoints" / "step-000000003"

    def slowly(path, content):
        if earlier.exists():  # the engine has saved twice since
            checkpoint(job, 5)
            checkpoint(job, 7)
            shutil.rmtree(earlier)
        write(path, content)

    monkeypatch.setattr(store, "write", slowly)
    said = []
    send_all(store, job, said)
    assert "checkpoints/step-000000003/weights.safetensors" in stored_run(store, job).newest().files
    assert "skipped: nothing" in said[-1]


@pytest.mark.parametrize("minutes", [0, 1])
def test_stored_copy_stays_if_the_disk_is_damaged(job, store, at, minutes):
    checkpoint(job, 3)
    send_all(store, job)
    (job.folder / "checkpoints" / "step-000000003" / "weights.safetensors").write_text("broken")
    hold(job, minutes)
    send_all(store, job)
    at("two")
    fetch_job(store, job, print)
    assert steps(job) == [3]


def test_damaged_checkpoint_is_not_uploaded(job, store):
    checkpoint(job, 3)
    checkpoint(job, 5)
    (job.folder / "checkpoints" / "step-000000005" / "weights.safetensors").write_text("broken")
    said = []
    send_all(store, job, said)
    assert {name.split("/")[1] for name in stored_run(store, job).newest().files if "/step-" in name} == {
        "step-000000003"
    }
    assert "step-000000005" in said[-1]
