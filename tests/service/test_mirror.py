"""A run's way to the store and back, on the folders of two machines; no run is started."""

import hashlib
import os
import shutil
import time
from datetime import UTC, datetime, timedelta

import pytest

from holdfast.core.artifacts import read_artifact, write_artifact
from holdfast.core.runfolder import MANIFEST, REPORT, REQUEST, RESULT, attempt_folder, model_folder
from holdfast.runs.identity import describe_process
from holdfast.service import aside, fetched, mirror, storage, unsent
from holdfast.service.fetched import fetch_run, fetch_story
from holdfast.service.home import this_home
from holdfast.service.jobs import datasets, leases, registry
from holdfast.service.jobs.downloads import model_zip
from holdfast.service.jobs.folders import make_folder
from holdfast.service.jobs.models import Job, TrainedModel
from holdfast.service.mirror import Mirror, bring, shelf_of
from holdfast.service.storage import StoreError, open_store
from holdfast.service.unsent import send_unsent

pytestmark = pytest.mark.django_db

NOW = datetime(2026, 1, 2, tzinfo=UTC)


@pytest.fixture
def store(settings, tmp_path):
    settings.STORE = f"file://{tmp_path}/store"
    storage._open.cache_clear()
    unsent._sent_datasets.clear()
    yield open_store()
    storage._open.cache_clear()


@pytest.fixture
def at(tmp_path, monkeypatch):
    """Be at another machine, with a disk of its own."""

    def go(name):
        monkeypatch.setenv("HOLDFAST_HOME", str(tmp_path / name))
        this_home().make()

    go("one")
    return go


@pytest.fixture
def job(ada, data, at, store):
    """A job that machine one has begun, with its upload in the store."""
    data.path.parent.mkdir(parents=True)
    data.path.write_text("text,label\na,b\n")
    send_unsent(store)
    made = leases.submit(owner=ada, name="words", dataset=data, request={"task": "classify"})
    return hold(made, 0)


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
    one = Mirror(store, job, job.folder, (said if said is not None else []).append)
    one.send_last()


def look(job):
    fetched._asked.clear()
    fetch_story(job)


def steps(job):
    return sorted(int(folder.name.removeprefix("step-")) for folder in (job.folder / "checkpoints").glob("step-*"))


def test_another_machine_gets_the_data_and_the_run_with_its_own_paths(job, store, at):
    checkpoint(job, 3)
    checkpoint(job, 5)
    send_all(store, job)
    at("two")
    bring(store, job, print)
    assert job.dataset.path.read_text() == "text,label\na,b\n"
    assert steps(job) == [3, 5]
    assert read_artifact(job.folder / REQUEST)["data"] == str(job.dataset.path)
    assert (attempt_folder(job.folder, 1) / "events.jsonl").read_text() == "step 5\n"


def test_an_old_folder_of_this_machine_gives_way_to_newer_work_and_a_newer_one_stays(job, store, at):
    checkpoint(job, 3)
    send_all(store, job)
    at("two")
    bring(store, job, print)
    hold(job, 1)
    checkpoint(job, 9)
    send_all(store, job)
    at("one")
    bring(store, job, print)
    assert steps(job) == [3, 9]
    hold(job, 2)
    checkpoint(job, 11)
    Mirror(store, job, job.folder, print).close()  # it died before it could send
    bring(store, job, print)
    assert steps(job) == [3, 9, 11]


def test_what_an_earlier_holder_sends_late_does_not_hide_the_work_of_the_next(job, store, at):
    checkpoint(job, 3)
    late = Mirror(store, job, job.folder, print)
    at("two")
    bring(store, job, print)
    hold(job, 1)
    checkpoint(job, 9)
    send_all(store, job)
    late.send_last()
    at("three")
    bring(store, job, print)
    assert steps(job) == [9]


def test_a_checkpoint_that_was_damaged_in_the_store_is_left_out_and_told(job, store, at, tmp_path):
    checkpoint(job, 3)
    checkpoint(job, 5)
    send_all(store, job)
    copy = shelf_of(store, job).newest()
    name = copy.files["checkpoints/step-000000005/weights.safetensors"]
    (damaged,) = (tmp_path / "store").rglob(name)
    damaged.write_text("weights 6")
    said = []
    at("two")
    bring(store, job, said.append)
    assert steps(job) == [3]
    assert "checkpoints/step-000000005/weights.safetensors is not what was stored" in said[0]


def test_of_a_damaged_model_nothing_is_brought(job, store, at, tmp_path):
    finish(job)
    (model_folder(job.folder) / "0_part").mkdir()
    (model_folder(job.folder) / "0_part" / "words.txt").write_text("words")
    send_all(store, job)
    copy = shelf_of(store, job).newest()
    (damaged,) = (tmp_path / "store").rglob(copy.files["model/0_part/words.txt"])
    damaged.write_text("other")
    at("page")
    fetch_run(job)
    assert not model_folder(job.folder).exists(), "weights without their words are no model"


def test_a_checkpoint_is_sent_though_its_run_drops_it_meanwhile(job, store, monkeypatch):
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
    assert "checkpoints/step-000000003/weights.safetensors" in shelf_of(store, job).newest().files
    assert "left out: nothing" in said[-1]


@pytest.mark.parametrize("minutes", [0, 1])
def test_what_the_store_has_stays_while_all_on_the_disk_is_damaged(job, store, at, minutes):
    checkpoint(job, 3)
    send_all(store, job)
    (job.folder / "checkpoints" / "step-000000003" / "weights.safetensors").write_text("broken")
    hold(job, minutes)
    send_all(store, job)
    at("two")
    bring(store, job, print)
    assert steps(job) == [3]


def test_a_checkpoint_that_is_damaged_on_the_disk_is_not_sent(job, store):
    checkpoint(job, 3)
    checkpoint(job, 5)
    (job.folder / "checkpoints" / "step-000000005" / "weights.safetensors").write_text("broken")
    said = []
    send_all(store, job, said)
    assert {name.split("/")[1] for name in shelf_of(store, job).newest().files if "/step-" in name} == {
        "step-000000003"
    }
    assert "step-000000005" in said[-1]


def test_of_a_finished_run_the_model_and_the_report_are_kept_and_the_page_brings_them(job, store, at):
    checkpoint(job, 3)
    send_all(store, job)
    finish(job)
    hold(job, 1)
    send_all(store, job)
    assert not [name for name in shelf_of(store, job).newest().files if "/step-" in name]
    at("page")
    name, _ = model_zip(job)
    assert name == f"words-{job.pk}.zip"
    (model_folder(job.folder) / "model.safetensors").write_text("here")
    fetch_run(job)
    assert (model_folder(job.folder) / "model.safetensors").read_text() == "here", "it is not brought again"


def test_the_page_of_a_run_elsewhere_shows_what_was_sent_last_and_never_touches_a_run_of_this_machine(job, store, at):
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
    bring(store, job, print)
    assert not (job.folder / fetched.SEEN).exists(), "a worker here does not go on in a folder for looking at"

    at("one")
    (job.folder / REPORT).unlink()
    look(job)
    assert not (job.folder / REPORT).exists()


def test_a_page_does_not_remove_a_run_that_a_keeper_brings_while_it_asks(job, store, at, monkeypatch):
    checkpoint(job, 3)
    send_all(store, job)
    at("two")
    look(job)
    assert (job.folder / fetched.SEEN).is_file()
    at("one")
    checkpoint(job, 5)
    send_all(store, job)
    at("two")
    newest = storage.Shelf.newest

    def meanwhile(shelf):
        monkeypatch.setattr(storage.Shelf, "newest", newest)
        bring(store, job, print)
        return newest(shelf)

    monkeypatch.setattr(storage.Shelf, "newest", meanwhile)
    look(job)
    assert steps(job) == [3, 5]
    assert (job.folder / mirror.TURN).is_file()

    write_artifact(job.folder, fetched.SEEN, {"mark": "earlier"})
    look(job)
    assert steps(job) == [3, 5]
    Mirror(store, job, job.folder, print).close()
    assert not (job.folder / fetched.SEEN).exists()


def test_a_page_does_not_wait_for_what_another_one_brings(job, store, at):
    send_all(store, job)
    at("page")
    with fetched._lock_of(job):
        look(job)
    assert not job.folder.exists()
    look(job)
    assert job.folder.exists()


def test_what_a_killed_process_left_on_the_way_is_swept_and_what_is_in_work_is_not(at):
    left = this_home().incoming / "store-left"
    (left / "files").mkdir(parents=True)
    (left / "held").touch()
    with aside.place_aside() as working:
        for folder in (left, working.parent):
            os.utime(folder, (time.time() - 60,) * 2)
        aside.sweep_aside()
        assert working.is_dir()
    assert not left.exists()


def test_the_page_of_a_run_is_there_while_the_store_is_away(job, store, at, tmp_path, caplog):
    send_all(store, job)
    (tmp_path / "store").rename(tmp_path / "away")
    (tmp_path / "store").write_text("a file is in the way")
    at("page")
    look(job)
    assert not job.folder.exists()


def test_a_run_that_goes_on_from_another_brings_its_model(job, store, at, ada, data):
    finish(job)
    send_all(store, job)
    second = leases.submit(owner=ada, name="more", dataset=data, request={"task": "classify", "from_run": job.pk})
    at("two")
    bring(store, second, print)
    assert (model_folder(job.folder) / "model.safetensors").read_text() == "model"
    make_folder(second)


def test_a_model_or_data_that_is_not_in_the_store_yet_is_waited_for(job, store, at, ada, data):
    second = leases.submit(owner=ada, name="more", dataset=data, request={"task": "classify", "from_run": job.pk})
    at("two")
    with pytest.raises(StoreError, match=f"the model of run {job.pk} is not in the store yet"):
        bring(store, second, print)
    store.drop(f"{store.root}/datasets")
    at("three")
    with pytest.raises(StoreError, match=f"dataset {data.pk} is not in the store yet"):
        bring(store, job, print)


def test_a_store_that_is_away_does_not_hold_up_the_run_and_gets_everything_later(job, store, tmp_path):
    checkpoint(job, 3)
    (tmp_path / "store").rename(tmp_path / "away")
    (tmp_path / "store").write_text("a file is in the way")
    said = []
    send_all(store, job, said)
    assert "not sent yet, the run goes on: HOLDFAST_STORE=file://" in said[0]
    (tmp_path / "store").unlink()

    write_artifact(this_home().keepers, f"{job.pk}.json", describe_process(os.getpid()))
    send_unsent(store)
    assert shelf_of(store, job).newest() is None, "its keeper lives and does it"
    (this_home().keepers / f"{job.pk}.json").unlink()
    send_unsent(store)
    assert shelf_of(store, job).newest() is not None
    assert not list(this_home().keepers.glob("*.unsent"))


def test_what_is_unsent_is_not_sent_over_newer_work(job, store, at):
    checkpoint(job, 3)
    Mirror(store, job, job.folder, print).close()
    at("two")
    bring(store, job, print)
    hold(job, 1)
    checkpoint(job, 9)
    send_all(store, job)
    newest = shelf_of(store, job).newest()
    at("one")
    send_unsent(store)
    assert shelf_of(store, job).newest() == newest
    assert not list(this_home().keepers.glob("*.unsent"))


def test_one_thing_that_cannot_be_sent_holds_up_no_other(job, store, at, data, tmp_path):
    unsent._sent_datasets.clear()
    (tmp_path / "store" / "datasets").rename(tmp_path / "away")
    (tmp_path / "store" / "datasets").write_text("a file is in the way")
    checkpoint(job, 3)
    Mirror(store, job, job.folder, print).close()
    with pytest.raises(StoreError):
        send_unsent(store)
    assert shelf_of(store, job).newest() is not None
    assert not list(this_home().keepers.glob("*.unsent"))


def test_a_mark_that_a_later_keeper_wrote_stays(job, store, monkeypatch):
    checkpoint(job, 3)
    Mirror(store, job, job.folder, print).close()
    send = unsent.send

    def slowly(*given):
        send(*given)
        Mirror(store, hold(job, 1), job.folder, print).close()

    monkeypatch.setattr(unsent, "send", slowly)
    send_unsent(store)
    assert list(this_home().keepers.glob("*.unsent"))


def until(is_so):
    deadline = time.monotonic() + 60
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.django_db(transaction=True)
def test_what_is_deleted_here_goes_from_the_store_too(job, store, ada, data):
    checkpoint(job, 3)
    finish(job)
    send_all(store, job)
    shelf = shelf_of(store, job)
    model = TrainedModel.objects.create(owner=ada, job=job, name="words", task="classify")
    registry.remove(model)
    until(lambda: not any("model/" in name for name in shelf.newest().files))
    assert REPORT in shelf.newest().files
    assert leases.delete(job)
    until(lambda: shelf.newest() is None)
    datasets.remove(data, ada)
    until(lambda: not store.files.find(store.root))
    until(lambda: not list(this_home().keepers.glob("*.unwanted")))


@pytest.mark.django_db(transaction=True)
def test_what_was_deleted_while_the_store_was_away_goes_when_it_is_back(job, store, tmp_path, capsys):
    send_all(store, job)
    (tmp_path / "store").rename(tmp_path / "away")
    (tmp_path / "store").write_text("a file is in the way")
    assert leases.delete(job)
    until(lambda: "not removed from the store yet" in capsys.readouterr().out)
    (tmp_path / "store").unlink()
    (tmp_path / "away").rename(tmp_path / "store")
    assert shelf_of(store, job).newest() is not None
    send_unsent(store)
    assert shelf_of(store, job).newest() is None
    assert not list(this_home().keepers.glob("*.unwanted"))
