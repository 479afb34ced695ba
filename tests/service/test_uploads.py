"""Uploads: limited, safely named, complete or absent; their content is surveyed and never executed."""

import gzip
import io
import json
import pickle
import shutil
import threading
import time
import zipfile

import pytest
from django.contrib.auth.models import Group, User
from django.core.files.uploadedfile import SimpleUploadedFile
from django.db import connection

from holdfast.core.errors import HoldfastError, MachineError, RequestError
from holdfast.service.home import this_home
from holdfast.service.jobs import datasets, uploads
from holdfast.service.jobs.models import Dataset, Job
from tests.service.surveyed import ROWS, surveys  # noqa: F401  (a fixture is named, not called)

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("surveys")]


@pytest.fixture
def ada():
    return User.objects.create_user("ada", password="a long password")


def send(owner, content, name="reviews.csv", **more):
    content = content.encode() if isinstance(content, str) else content
    return datasets.settle(uploads.receive(owner, SimpleUploadedFile(name, content), **more))


def left_over():
    return [path.name for path in this_home().incoming.iterdir()]


def test_an_upload_is_kept_surveyed_and_shown(ada):
    found = send(ada, ROWS)
    assert (found.state, found.facts["task"], found.facts["rows"], found.name) == ("ready", "classify", 60, "reviews")
    assert found.path.read_text() == ROWS
    assert found.preview["columns"] == ["text", "label"]
    assert len(found.preview["rows"]) == 20
    assert sum(count for _, count in found.facts["histograms"]["text"]) == 60
    assert left_over() == []


def test_server_paths_are_hidden(ada):
    for content in (ROWS, "", "\x89PNG\r\n", "a,b\n1,2\n", '{"a": '):
        try:
            found = send(ada, content)
        except HoldfastError:
            continue
        said = json.dumps([found.facts, found.preview, found.problem])
        assert str(this_home().folder) not in said


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("reviews.csv", "reviews.csv"),
        ("../../etc/passwd", "passwd"),
        ("..\\..\\boot.ini", "boot.ini"),
        ("a/b/c.csv", "c.csv"),
        ("nul\0l.csv", "nul_l.csv"),
        (".hidden", "hidden"),
        ("...", "upload"),
        ("", "upload"),
        ("new\nline\r.csv", "new_line_.csv"),
        ("größe 2.csv", "größe_2.csv"),
        ("評価.jsonl", "評価.jsonl"),
        ("$(rm -rf ~).csv.gz", "rm_-rf_.csv.gz"),
        ("-rf", "rf"),
        ("\ud800.csv", "csv"),
        ("\u202egnp.csv", "gnp.csv"),
    ],
)
def test_names_are_only_names(given, kept):
    assert uploads.safe_name(given) == kept


@pytest.mark.parametrize("given", ["x" * 5000 + ".csv", "評" * 500 + ".csv.gz", "." + "y" * 900, "a." + "z." * 400])
def test_long_names_are_cut_and_keep_their_ending(given):
    name = uploads.safe_name(given)
    assert 0 < len(name) <= 100
    assert len(name.encode()) <= 200
    assert name.endswith(given[-3:].strip("."))


def test_too_large_file_is_refused_without_leftovers(ada, settings):
    settings.UPLOAD_BYTES = 1000
    with pytest.raises(RequestError, match=r"1\.0 kB"):
        send(ada, b"x" * 1001)
    assert left_over() == []
    assert not Dataset.objects.exists()


def test_full_disk_is_reported_before_writing(ada, monkeypatch):
    usage = shutil.disk_usage("/")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=5000))
    with pytest.raises(MachineError):
        send(ada, ROWS)
    assert left_over() == []


def test_an_empty_file_is_refused(ada):
    with pytest.raises(RequestError, match="empty"):
        send(ada, b"")
    assert left_over() == []


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.csv", b"\x89PNG\r\n\x1a\n" + bytes(200), "a PNG picture"),
        ("a.csv", pickle.dumps({"text": ["x"]}, 4), "a pickle"),
        ("a.csv", b"\x7fELF" + bytes(100), "a program"),
        ("a.csv", bytes(range(256)) * 20, "binary data"),
        ("a.csv", b"%PDF-1.7 \x01\x02\x03", "a PDF"),
        ("a.csv.gz", b"\x1f\x8b not gzip", "damaged"),
        ("a.csv.gz", gzip.compress(b"text,label\n" * 5000)[:50], "truncated"),
        ("a.jsonl", b"[" * 100_000, "not JSON"),
        ("a.csv", b"\n\n\n", ""),
        ("a.xlsx", b"PK\x03\x04" + bytes(100), "damaged"),
    ],
)
def test_non_dataset_is_named(ada, name, content, words):
    found = send(ada, content, name)
    assert found.state == "refused"
    assert words in found.problem["what"]


def bomb_zip(names):
    held = io.BytesIO()
    with zipfile.ZipFile(held, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in names:
            archive.writestr(name, bytes(3_000_000))
    return held.getvalue()


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("bomb.csv.gz", gzip.compress(b"text,label\n" + b"some words,a\n" * 400_000)),
        ("bomb.xlsx", bomb_zip(["xl/workbook.xml", "xl/worksheets/sheet1.xml"])),
        ("bomb.npz", bomb_zip(["queries.npy", "passages.npy"])),
    ],
)
def test_zip_bomb_is_refused_by_its_unpacked_size(ada, settings, name, content):
    settings.UNPACKED_BYTES = 2_000_000
    assert len(content) < 200_000
    found = send(ada, content, name)
    assert found.state == "refused"
    assert "2.0 MB allowed" in found.problem["what"]


def test_too_many_rows_are_refused(ada, settings):
    settings.UPLOAD_ROWS = 20_000
    found = send(ada, "text,label\n" + "".join(f"words {at},{at % 2}\n" for at in range(30_000)))
    assert found.state == "refused"
    assert "20,000 rows allowed" in found.problem["what"]


def test_a_packed_table_inside_gzip_is_refused(ada):
    found = send(ada, gzip.compress(bomb_zip(["xl/workbook.xml"])), "a.xlsx.gz")
    assert "gzip" in found.problem["what"]


def test_zeros_and_broken_letters_can_be_stored(ada):
    content = b"text,label\n" + b"".join(b"nul \x00 and \xff\xfe %d,%d\n" % (at, at % 2) for at in range(40))
    found = send(ada, content)
    assert "\\u0000" not in json.dumps([found.facts, found.preview, found.problem])
    json.dumps([found.facts, found.preview, found.problem]).encode("utf-8")


def test_choices_are_checked_together(ada):
    with pytest.raises(RequestError) as caught:
        datasets.clean_choices({"task": "clasify", "encoding": "rot13", "header": "perhaps", "path": "/etc/passwd"})
    problems = {one.setting: one.text for one in caught.value.problems}
    assert set(problems) == {"task", "encoding", "header", ""}
    assert "classify" in problems["task"].split()[-1]
    assert "'path'" in problems[""]


@pytest.mark.parametrize(
    "given",
    [
        {"text_column": ["a", 3]},
        {"label_column": "x" * 301},
        {"min_score": "nan"},
        {"min_score": [1]},
        {"text_column": "\0"},
    ],
)
def test_odd_choices_are_refused(given):
    with pytest.raises(RequestError):
        datasets.clean_choices(given)


def test_other_choices_make_another_survey(ada):
    content = "title,body,kind\n" + "".join(f"t{at},a longer body of text {at},{'ab'[at % 2]}\n" for at in range(50))
    found = send(ada, content)
    again = datasets.choose(found, {"task": "classify", "text_column": ["title"], "label_column": "kind"})
    assert (again.state, again.facts["text_column"]) == ("ready", "title")
    wrong = datasets.choose(again, {"text_column": ["nothing"]})
    assert wrong.state == "refused"
    assert "nothing" in json.dumps(wrong.problem)
    assert wrong.preview["columns"] == ["title", "body", "kind"]  # so that the right one can be chosen
    back = datasets.choose(wrong, {"task": "classify", "text_column": ["title"], "label_column": "kind"})
    assert back.state == "ready"


def test_a_lost_survey_is_begun_again(ada, monkeypatch):
    begin = datasets.begin
    monkeypatch.setattr(datasets, "begin", lambda folder, key: Lost())
    found = uploads.receive(ada, SimpleUploadedFile("a.csv", ROWS.encode()))
    assert datasets.settle(found).state == "surveying"
    monkeypatch.setattr(datasets, "begin", begin)
    monkeypatch.setattr(datasets, "_begun", {})  # as a server that was just started
    datasets.settle_all()
    found.refresh_from_db()
    assert datasets.settle(found).state == "ready"


class Lost:
    def poll(self):
        return -9


def test_result_for_other_choices_is_not_used(ada, monkeypatch):
    found = send(ada, ROWS)
    monkeypatch.setattr(datasets, "begin", lambda folder, key: Lost())
    waiting = datasets.choose(found, {"task": "causal"})
    stale = Dataset.objects.get(pk=waiting.pk)
    stale.choices = {}  # as read before the choice was made
    datasets.settle(stale)
    assert Dataset.objects.get(pk=waiting.pk).state == "surveying"


def test_vanished_file_is_reported(ada, monkeypatch):
    monkeypatch.setattr(datasets, "begin", lambda folder, key: Lost())
    found = uploads.receive(ada, SimpleUploadedFile("a.csv", ROWS.encode()))
    shutil.rmtree(found.path.parent)
    settled = datasets.settle(found)
    assert settled.state == "refused"
    assert settled.problem


def test_a_dataset_in_use_is_not_deleted(ada):
    found = send(ada, ROWS)
    job = Job.objects.create(owner=ada, name="first run", dataset=found)
    with pytest.raises(RequestError, match="used by 1 run"):
        datasets.remove(found, ada)
    assert found.path.is_file()
    job.delete()
    folder = found.path.parent
    datasets.remove(Dataset.objects.get(pk=found.pk), ada)
    assert not folder.exists()
    assert not Dataset.objects.exists()


def test_dataset_deletion_error_hides_foreign_runs(ada):
    found, bob = send(ada, ROWS), User.objects.create_user("bob")
    for number in range(5):
        Job.objects.create(owner=bob, name=f"secret {number}", request={"validation": found.pk})
    with pytest.raises(RequestError, match="used by 5 runs") as refused:
        datasets.remove(found, ada)
    assert "secret" not in refused.value.found
    with pytest.raises(RequestError) as refused:
        datasets.remove(found, bob)
    assert refused.value.found == "secret 4, secret 3, secret 2"


def test_half_uploads_and_folders_without_a_row_are_swept(ada):
    home = this_home()
    living = uploads.Incoming()
    living.write(b"half of it")
    dead = home.incoming / "upload-dead"
    dead.mkdir()
    (dead / "file").write_bytes(b"half of it")
    orphan = home.datasets / "99999999"
    orphan.mkdir()
    kept = send(ada, ROWS)
    assert uploads.sweep(now=time.time() + 7200) >= 2
    assert living.folder.exists()
    assert not dead.exists()
    assert not orphan.exists()
    assert kept.path.is_file()
    living.discard()


def test_team_must_be_the_users_own(ada):
    with pytest.raises(RequestError) as refused:
        send(ada, ROWS, team=Group.objects.create(name="others"))
    assert refused.value.setting == "team"
    assert left_over() == []


def test_an_administrator_may_give_to_every_team(ada):
    User.objects.filter(pk=ada.pk).update(is_superuser=True)
    team = Group.objects.create(name="others")
    assert send(User.objects.get(pk=ada.pk), ROWS, team=team).team == team


@pytest.mark.django_db(transaction=True)
def test_simultaneous_uploads_do_not_interfere():
    ada = User.objects.create_user("ada", password="a long password")
    problems = []

    def one(number):
        try:
            content = ROWS + f"one more line {number},food\n" * 3
            uploads.receive(ada, SimpleUploadedFile("same.csv", content.encode()))
        except Exception as error:
            problems.append(error)
        finally:
            connection.close()

    threads = [threading.Thread(target=one, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert problems == []
    found = list(Dataset.objects.all())
    assert len({dataset.path.read_text() for dataset in found}) == len(found) == 6


def test_duplicate_content_is_noticed(ada):
    first, second = send(ada, ROWS), send(ada, ROWS)
    assert [twin.pk for twin in datasets.twins(second, ada)] == [first.pk]
