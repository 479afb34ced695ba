"""The object store returns what was stored whole or not at all, from a folder and from a real S3 server."""

import json
import urllib.request
from datetime import UTC, datetime

import pytest

from holdfast.core.errors import MachineError, RequestError
from holdfast.service import object_store as storage
from holdfast.service.object_store import ObjectStore, StoreError, require_store
from holdfast.service.stored_folder import StoredFile, StoredFolder
from tests.service.parts import free_port, s3, s3_variables

pytestmark = pytest.mark.service

MADE = datetime(2026, 1, 2, tzinfo=UTC)


@pytest.fixture(scope="module")
def server():
    with s3() as part:
        yield part


@pytest.fixture
def keys(server, monkeypatch):
    """This process may use the server."""
    for name, value in s3_variables(server).items():
        monkeypatch.setenv(name, value)


@pytest.fixture(params=["file", pytest.param("s3", marks=pytest.mark.full)])
def store(request, tmp_path):
    if request.param == "file":
        return ObjectStore(f"file://{tmp_path}/store")
    request.getfixturevalue("keys")
    return ObjectStore(f"s3://holdfast/{tmp_path.name}")


@pytest.fixture
def folder(tmp_path):
    """A few files of a run."""
    made = tmp_path / "run"
    (made / "checkpoints" / "step-5").mkdir(parents=True)
    (made / "plan.json").write_text("{}")
    (made / "checkpoints" / "step-5" / "weights").write_bytes(b"w" * 100)
    return made


def items(folder, *names, **sums):
    return [{name: StoredFile(path=folder / name, sha256=sums.get(name.rpartition("/")[2], ""))} for name in names]


def everything(store, folder, **sums):
    return StoredFolder(store, "runs", 7, MADE), items(folder, "plan.json", "checkpoints/step-5/weights", **sums)


def objects(store):
    return sorted(path.rpartition("/")[2] for path in store.files.find(store.root))


def test_folder_round_trips_and_old_files_are_deleted(store, folder, tmp_path):
    stored, groups = everything(store, folder)
    assert stored.newest() is None
    assert stored.put("turn-1", groups) == []
    (folder / "plan.json").write_text('{"later": 1}')
    stored.put("turn-1", groups)
    copy = stored.newest()
    assert copy.fence == "turn-1"
    assert stored.get(copy, list(copy.files), tmp_path / "back") == []
    assert (tmp_path / "back" / "plan.json").read_text() == '{"later": 1}'
    assert (tmp_path / "back" / "checkpoints" / "step-5" / "weights").read_bytes() == b"w" * 100
    assert len(objects(store)) == 3, "two files and one index"

    stored.put("turn-2", groups[:1])
    assert stored.newest().fence == "turn-2"
    assert len(objects(store)) == 2
    stored.drop()
    assert stored.newest() is None


def test_abandoned_upload_does_not_hide_later_ones(store, folder):
    stored, groups = everything(store, folder)
    stored.put("turn-2", groups)
    stored.put("turn-1", groups[:1])
    assert stored.newest().fence == "turn-2"


def test_truncated_index_keeps_the_previous_valid(store, folder):
    stored, groups = everything(store, folder)
    stored.put("turn-1", groups)
    whole = json.dumps({"made": MADE.isoformat(), "files": {"plan.json": "0"}})
    store.write(f"{store.root}/runs/7/turn-1/index-000002.json", whole[:-5].encode())
    assert set(stored.newest().files) == {"plan.json", "checkpoints/step-5/weights"}


def test_damaged_or_missing_stored_files_are_skipped(store, folder, tmp_path):
    stored, groups = everything(store, folder)
    stored.put("turn-1", groups)
    copy = stored.newest()
    path = f"{store.root}/runs/7/turn-1/"
    store.write(path + copy.files["checkpoints/step-5/weights"], b"x" * 100)
    assert stored.get(copy, list(copy.files), tmp_path / "back") == ["checkpoints/step-5/weights"]
    store.drop(path + copy.files["plan.json"])
    assert stored.get(copy, list(copy.files), tmp_path / "again") == list(copy.files)
    assert not [file for file in (tmp_path / "again").rglob("*") if file.is_file()]


def test_file_that_differs_from_its_manifest_is_not_uploaded(store, folder):
    stored, groups = everything(store, folder, weights="0" * 64)
    assert stored.put("turn-1", groups) == ["checkpoints/step-5/weights"]
    assert set(stored.newest().files) == {"plan.json"}


@pytest.mark.parametrize("turn", ["turn-1", "turn-2"])
def test_old_files_stay_if_no_new_ones_arrived(store, folder, tmp_path, turn):
    stored, groups = everything(store, folder)
    stored.put("turn-1", groups)
    (folder / "checkpoints" / "step-5").rename(folder / "checkpoints" / "gone")
    assert stored.put(turn, groups, kept="checkpoints/") == ["checkpoints/step-5/weights"]
    copy = stored.newest()
    assert copy.fence == turn
    assert stored.get(copy, list(copy.files), tmp_path / "back") == []
    assert (tmp_path / "back" / "checkpoints" / "step-5" / "weights").is_file()
    assert len(objects(store)) == 3, "two files and one index"
    stored.put(turn, groups[:1], kept="checkpoints/")
    assert set(stored.newest().files) == {"plan.json"}, "what is no more to be stored goes"


def test_vanished_file_drops_its_whole_group(store, folder):
    stored, groups = everything(store, folder)
    gone = StoredFile(path=folder / "checkpoints" / "step-5" / "gone")
    assert stored.put("turn-1", [groups[0], {**groups[1], "checkpoints/step-5/gone": gone}]) == [
        "checkpoints/step-5/weights",
        "checkpoints/step-5/gone",
    ]
    assert set(stored.newest().files) == {"plan.json"}


def test_incomplete_upload_is_repeated(store, folder, tmp_path):
    stored, groups = everything(store, folder)
    stored.put("turn-1", groups)
    copy = stored.newest()
    store.write(f"{store.root}/runs/7/turn-1/{copy.files['checkpoints/step-5/weights']}", b"w" * 50)
    stored.put("turn-1", groups)
    assert stored.get(stored.newest(), list(copy.files), tmp_path / "back") == []


def test_foreign_runs_and_escaping_names_are_refused(store, folder):
    stored, groups = everything(store, folder)
    stored.put("turn-1", groups)
    assert StoredFolder(store, "runs", 7, datetime(2025, 1, 1, tzinfo=UTC)).newest() is None
    for name in ("../evil", "/evil"):
        evil = json.dumps({"made": MADE.isoformat(), "files": {name: "0" * 64}})
        store.write(f"{store.root}/runs/7/turn-2/index-000001.json", evil.encode())
        assert stored.newest().fence == "turn-1"


def test_some_files_of_a_copy_can_be_dropped(store, folder):
    stored, groups = everything(store, folder)
    stored.put("turn-1", groups)
    stored.keep(stored.newest(), ["plan.json"])
    assert set(stored.newest().files) == {"plan.json"}
    assert len(objects(store)) == 2


def test_local_full_disk_is_not_a_store_error(tmp_path, folder, monkeypatch):
    store = ObjectStore(f"file://{tmp_path}/store")
    stored, groups = everything(store, folder)
    stored.put("turn-1", groups)

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(store.files, "get_file", full)
    copy = stored.newest()
    with pytest.raises(MachineError) as caught:
        stored.get(copy, list(copy.files), tmp_path / "back")
    assert not isinstance(caught.value, StoreError)


def test_store_error_hides_the_password(tmp_path):
    store = ObjectStore(f"file://{tmp_path}/a:hushhush@b")
    with pytest.raises(StoreError) as caught, store.explained():
        raise OSError("530 hushhush is wrong")
    assert "hushhush" not in f"{caught.value} {caught.value.found}"


def refused(settings, url):
    settings.STORE = url
    storage._open.cache_clear()
    said = []
    with pytest.raises((StoreError, RequestError)) as caught:
        require_store(said.append)
    assert not said
    return caught.value


def test_unusable_address_is_refused_with_alternatives(settings, keys, tmp_path):
    error = refused(settings, "bucket/folder")
    assert "HOLDFAST_STORE=bucket/folder" in str(error)
    assert "HOLDFAST_STORE=s3://BUCKET/FOLDER" in error.try_next
    error = refused(settings, "s4://bucket/folder")
    assert "s4://bucket/folder" in str(error)
    assert "s4" in error.found
    error = refused(settings, "s3://no-such-bucket/folder")
    assert "s3://no-such-bucket/folder" in str(error)
    assert "bucket" in error.try_next[0]
    (tmp_path / "file").write_text("")
    assert f"{tmp_path}/file/store" in str(refused(settings, f"file://{tmp_path}/file/store"))
    for password in ("secret", "p/secret", "p@secret", "secret@p/q"):
        error = refused(settings, f"s4://someone:{password}@host/folder")
        assert "HOLDFAST_STORE=s4://...@host/folder" in str(error)
        assert "secret" not in f"{error} {error.found}"


def let_in(server, requests):
    """The server lets everybody in for so many requests, and then looks at their keys."""
    url = s3_variables(server)["AWS_ENDPOINT_URL"] + "/moto-api/reset-auth"
    asked = urllib.request.Request(url, data=requests, headers={"Content-Type": "text/plain"}, method="POST")
    urllib.request.urlopen(asked, timeout=30).close()


def test_keys_that_open_nothing_are_refused_by_their_names(settings, server, keys):
    let_in(server, b"0")
    try:
        error = refused(settings, "s3://holdfast/keys")
    finally:
        let_in(server, b"inf")
    assert "s3://holdfast/keys" in str(error)
    assert "AWS_SECRET_ACCESS_KEY" in error.try_next[0]


def test_unresponsive_store_is_reported_and_retried(settings, keys, monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{free_port()}")
    settings.STORE = "s3://holdfast/away"
    storage._open.cache_clear()
    said = []
    require_store(said.append)
    assert "s3://holdfast/away" in said[0]


def test_without_a_store_nothing_is_asked(settings):
    settings.STORE = ""
    assert storage.open_store() is None
    require_store(None)
