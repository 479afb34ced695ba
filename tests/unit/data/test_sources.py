"""Every kind of source is read through `holdfast survey` as its owner would expect, or refused by name."""

import io
import json
import os
import tarfile
import threading
import zipfile
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from click.testing import CliRunner

from holdfast.cli.survey import survey as survey_command
from holdfast.core.errors import RequestError
from holdfast.core.settings import TrainRequest
from holdfast.data import archives, download
from holdfast.data.download import local_copy
from holdfast.runs.new_train import with_local_data
from tests.unit.data.conftest import csv_text, labelled, sentences

ROWS = labelled(60)
TABLE = csv_text(ROWS)


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def surveyed(*words: object) -> dict:
    done = CliRunner().invoke(survey_command, [*map(str, words), "--json"], catch_exceptions=False)
    return json.loads(done.stdout)


def refused(*words: object) -> RequestError:
    with pytest.raises(RequestError) as caught:
        CliRunner().invoke(survey_command, [*map(str, words), "--json"], catch_exceptions=False, standalone_mode=False)
    return caught.value


def zipped(path: Path, files: dict[str, str | bytes]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return path


def tarred(path: Path, files: dict[str, str], mode: str = "w:gz") -> Path:
    with tarfile.open(path, mode) as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content.encode())
            archive.addfile(member, io.BytesIO(content.encode()))
    return path


SPLIT_FILES = {
    "set/train.csv": TABLE,
    "set/val.csv": csv_text(labelled(8, seed=1)),
    "set/test.csv": csv_text(labelled(9, seed=2)),
}
CLASSES = {f"{label}/{at}.txt": text for at, (text, label) in enumerate(ROWS)}


class TestArchives:
    @pytest.mark.parametrize("name", ["a.zip", "a.tar", "a.tar.gz", "a.tgz", "a.tar.bz2", "a.tar.xz"])
    def test_splits_in_an_archive(self, tmp_path, name):
        mode = {"tar": "w", "gz": "w:gz", "tgz": "w:gz", "bz2": "w:bz2", "xz": "w:xz"}.get(name.rpartition(".")[2])
        path = tarred(tmp_path / name, SPLIT_FILES, mode) if mode else zipped(tmp_path / name, SPLIT_FILES)
        found = surveyed(path)
        assert found["splits"] == {"train": 60, "validation": 8, "test": 9}
        assert found["choices"]["archive"]["value"] == name

    @pytest.mark.parametrize(
        "files",
        [
            {"table.csv": TABLE},
            {"a/b/table.csv": TABLE, "a/b/README.md": "about", "__MACOSX/a/b/._table.csv": "x"},
            {"SentimentCollection": TABLE, "readme": "about"},
            {"train.jsonl": "".join(json.dumps({"text": text, "label": label}) + "\n" for text, label in ROWS)},
        ],
    )
    def test_one_table_in_an_archive(self, tmp_path, files):
        found = surveyed(zipped(tmp_path / "a.zip", files))
        assert (found["rows"], found["labels"]) == (60, {"neg": 30, "pos": 30})

    def test_validation_and_test_may_be_archives(self, tmp_path, write):
        test = zipped(tmp_path / "t.zip", {"rows.csv": csv_text(labelled(7, seed=3))})
        assert surveyed(write("a.csv", TABLE), "--test", test)["splits"]["test"] == 7
        assert refused(write("a.csv", TABLE), "--test", zipped(tmp_path / "s.zip", SPLIT_FILES)).setting == "test"

    @pytest.mark.parametrize(
        "name", ["../evil.csv", "/etc/evil.csv", "a/../../evil.csv", "a\\..\\evil.csv", "C:/evil.csv"]
    )
    def test_names_that_lead_out_are_refused(self, tmp_path, name):
        inside = tmp_path / "deep" / "er"
        inside.mkdir(parents=True)
        assert "evil" in refused(zipped(inside / "a.zip", {"ok.csv": TABLE, name: TABLE})).found
        assert "evil" in refused(tarred(inside / "a.tar.gz", {"ok.csv": TABLE, name: TABLE})).found
        assert not list(tmp_path.rglob("*evil*"))
        assert not list((tmp_path / "cache").rglob("ok.csv"))

    def test_links_and_devices_are_refused(self, tmp_path):
        for kind, target in ((tarfile.SYMTYPE, "/etc/passwd"), (tarfile.LNKTYPE, "a"), (tarfile.FIFOTYPE, "")):
            path = tarred(tmp_path / "a.tar", {"a.csv": TABLE}, "w")
            with tarfile.open(path, "a") as archive:
                member = tarfile.TarInfo("link.csv")
                member.type, member.linkname = kind, target
                archive.addfile(member)
            assert "link.csv" in refused(path).found
        path = zipped(tmp_path / "a.zip", {"a.csv": TABLE})
        with zipfile.ZipFile(path, "a") as archive:
            link = zipfile.ZipInfo("link.csv")
            link.create_system, link.external_attr = 3, 0o120777 << 16
            archive.writestr(link, "/etc/passwd")
        assert "link.csv" in refused(path).found

    def test_bombs_are_refused(self, tmp_path, monkeypatch):
        monkeypatch.setattr(archives, "_ALWAYS_BYTES", 1_000_000)
        bomb = zipped(tmp_path / "a.zip", {"a.csv": b"\0" * 30_000_000})
        assert bomb.stat().st_size < 100_000
        assert refused(bomb).exit_code == 2
        monkeypatch.setattr(archives, "MOST_FILES", 3)
        assert refused(zipped(tmp_path / "b.zip", {f"{at}.txt": "a" for at in range(9)})).exit_code == 2
        assert not list((tmp_path / "cache").rglob("*.txt"))

    def test_damaged_archives_are_refused(self, tmp_path):
        path = zipped(tmp_path / "a.zip", SPLIT_FILES)
        path.write_bytes(path.read_bytes()[:-80])
        assert refused(path).what.startswith("a.zip")
        noise = bytearray(zipped(tmp_path / "b.zip", {"a.csv": TABLE}).read_bytes())
        noise[200:300] = os.urandom(100)
        (tmp_path / "b.zip").write_bytes(noise)
        assert refused(tmp_path / "b.zip").what.startswith("b.zip")
        cut = tarred(tmp_path / "c.tar.gz", {"a.csv": os.urandom(50_000).hex()})
        cut.write_bytes(cut.read_bytes()[:20_000])
        assert refused(cut).exit_code == 2

    def test_two_entries_of_one_name_are_refused(self, tmp_path):
        twice = tarred(tmp_path / "a.tar", {"a.csv": TABLE}, "w")
        with tarfile.open(twice, "a") as archive:
            archive.addfile(tarfile.TarInfo("a.csv"))
        assert "a.csv" in refused(twice).found
        assert "a.csv/b.csv" in refused(zipped(tmp_path / "b.zip", {"a.csv": TABLE, "a.csv/b.csv": TABLE})).found

    def test_an_archive_unpacked_by_two_processes_is_read(self, tmp_path, monkeypatch):
        path = zipped(tmp_path / "a.zip", SPLIT_FILES)
        write_all = archives._write_all

        def write_after_another_process(path, folder, on_progress):
            monkeypatch.setattr(archives, "_write_all", write_all)
            archives.unpack(path)
            folder.mkdir(exist_ok=True)
            write_all(path, folder, on_progress)

        monkeypatch.setattr(archives, "_write_all", write_after_another_process)
        assert surveyed(path)["splits"] == {"train": 60, "validation": 8, "test": 9}

    def test_an_archive_without_data_is_refused(self, tmp_path):
        assert refused(zipped(tmp_path / "a.zip", {"a.png": "x", "b.png": "y"})).what.startswith("a.zip")


class TestFolders:
    def test_a_subfolder_for_each_class(self, write, tmp_path):
        for name, text in CLASSES.items():
            write(f"set/{name}", text)
        found = surveyed(tmp_path / "set")
        assert (found["task"], found["labels"], found["rows"]) == ("classify", {"neg": 30, "pos": 30}, 60)
        assert surveyed(zipped(tmp_path / "a.zip", CLASSES))["labels"] == found["labels"]

    def test_classes_of_each_split(self, write, tmp_path):
        for split, count in (("train", 40), ("test", 20)):
            for at, (text, label) in enumerate(labelled(count, seed=len(split))):
                write(f"aclImdb/{split}/{label}/{at}_7.txt", text)
        write("aclImdb/train/unsup/0_0.txt", "no label")
        write("aclImdb/README", "about")
        write("aclImdb/imdbEr.txt", "0.1\n")
        found = surveyed(tmp_path / "aclImdb")
        assert (found["splits"]["test"], found["rows"], set(found["labels"])) == (20, 60, {"neg", "pos"})
        assert [one["values"]["files"] for one in found["warning_details"]] == [["train/unsup"]]

    def test_a_line_named_as_an_archive_is_refused(self, write):
        assert ".zip" in refused(write("line.zip", "just a line of words\n")).found

    def test_an_empty_class_is_left_out(self, write, tmp_path):
        for name, text in CLASSES.items():
            write(f"set/{name}", text)
        folder = next(iter((tmp_path / "set").rglob("*.txt"))).parent.parent
        (folder / "neutral").mkdir()
        found = surveyed(tmp_path / "set")
        assert (found["task"], found["labels"]) == ("classify", {"neg": 30, "pos": 30})
        assert [one["values"]["files"] for one in found["warning_details"]] == [[f"{folder.name}/neutral"]]

    def test_a_picture_among_texts_is_named(self, write, tmp_path):
        for name, text in CLASSES.items():
            write(f"set/{name}", text)
        folder = next(iter((tmp_path / "set").rglob("*.txt"))).parent
        (folder / "stray.png").write_bytes(b"\x89PNG")
        assert refused(tmp_path / "set").found == f"{folder.name}/stray.png"

    def test_odd_files_in_classes_are_listed(self, write, tmp_path):
        for at, (text, label) in enumerate(labelled(200)):
            write(f"set/{label}/{at}.txt", text)
        write("set/neg/0.txt", "caf\u00e9 \u00fcber".encode("cp1252"))
        write("set/neg/empty.txt", b"")
        write("set/pos/noise.txt", bytes(range(256)) * 9)
        found = surveyed(tmp_path / "set")
        assert found["rows"] == 200
        assert [(bad["file"], bad["kind"]) for bad in found["bad_rows"]] == [
            ("noise.txt", "not-text"),
            ("set", "empty"),
        ]

    def test_tables_in_a_folder_for_each_split(self, write, tmp_path):
        for split, count in (("train", 30), ("train", 31), ("validation", 8), ("test", 9)):
            write(f"set/{split}/part-{count}.csv", labelled(count, seed=count))
        assert surveyed(tmp_path / "set")["splits"] == {"train": 61, "validation": 8, "test": 9}

    def test_beir_splits_are_its_own(self, write, tmp_path):
        write("b/corpus.jsonl", [{"_id": f"p{at}", "text": text} for at, text in enumerate(sentences(20))])
        write("b/queries.jsonl", [{"_id": f"q{at}", "text": text} for at, text in enumerate(sentences(20, 3))])
        write("b/qrels/train.tsv", "query-id\tcorpus-id\tscore\n" + "".join(f"q{at}\tp{at}\t1\n" for at in range(20)))
        other = write("v.csv", TABLE)
        for setting in ("validation", "test"):
            assert refused(tmp_path / "b", f"--{setting}", other).setting == setting


FEATURES = {
    "text": {"dtype": "string", "_type": "Value"},
    "label": {"names": ["negative", "positive"], "_type": "ClassLabel"},
}


class TestSavedDatasets:
    """Folders as `save_to_disk` of `datasets` writes them."""

    def save(self, folder: Path, rows: list, features: dict, name: str = "data-00000-of-00001.arrow") -> None:
        polars = pytest.importorskip("polars")
        folder.mkdir(parents=True)
        polars.DataFrame(rows).write_ipc_stream(folder / name)
        (folder / "state.json").write_text(json.dumps({"_data_files": [{"filename": name}], "_split": None}))
        (folder / "dataset_info.json").write_text(json.dumps({"features": features}))

    def rows(self, count: int, seed: int = 0) -> list:
        return [{"text": text, "label": int(label == "pos")} for text, label in labelled(count, seed=seed)]

    def test_splits_and_class_names(self, tmp_path):
        for split, count in (("train", 60), ("validation", 8), ("test", 9), ("unsupervised", 5)):
            self.save(tmp_path / "set" / split, self.rows(count, len(split)), FEATURES)
        splits = ["train", "validation", "test", "unsupervised"]
        (tmp_path / "set" / "dataset_dict.json").write_text(json.dumps({"splits": splits}))
        found = surveyed(tmp_path / "set")
        assert found["splits"] == {"train": 60, "validation": 8, "test": 9}
        assert list(found["labels"]) == ["negative", "positive"]
        assert found["warning_details"][0]["values"] == {"files": ["unsupervised"]}

    def test_one_dataset_with_missing_labels(self, tmp_path):
        self.save(tmp_path / "set", [*self.rows(60), {"text": "no label", "label": -1}], FEATURES)
        found = surveyed(tmp_path / "set")
        assert (found["rows"], found["incomplete_row_count"]) == (60, 1)
        assert surveyed(tmp_path / "set" / "data-00000-of-00001.arrow")["rows"] == 60

    def test_incomplete_ones_are_refused(self, tmp_path):
        self.save(tmp_path / "set", self.rows(60), FEATURES)
        (tmp_path / "set" / "data-00000-of-00001.arrow").unlink()
        assert "data-00000" in refused(tmp_path / "set").found
        self.save(tmp_path / "dict" / "test", self.rows(9), FEATURES)
        (tmp_path / "dict" / "dataset_dict.json").write_text('{"splits": ["test"]}')
        assert "test" in refused(tmp_path / "dict").found

    def test_truncated_file_is_refused(self, tmp_path):
        self.save(tmp_path / "set", self.rows(60), FEATURES)
        path = tmp_path / "set" / "data-00000-of-00001.arrow"
        path.write_bytes(path.read_bytes()[:300])
        assert refused(tmp_path / "set").what.startswith(path.name)


class _Server(BaseHTTPRequestHandler):
    """Serves the files of a mapping, and counts what was asked."""

    def __init__(self, files: dict, asked: list, *args):
        self.files, self.asked = files, asked
        super().__init__(*args)

    def do_GET(self):
        self.asked.append((self.path, self.headers.get("Range")))
        content, kind, headers, cut = self.files.get(self.path, (None, "", {}, 0))
        if content is None:
            self.send_error(404)
            return
        if location := headers.get("Location"):
            self.send_response(302)
            self.send_header("Location", location)
            self.end_headers()
            return
        start = int((self.headers.get("Range") or "bytes=0-")[6:].rstrip("-"))
        self.send_response(206 if start else 200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content) - start))
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content[start : cut or None] if not start else content[start:])

    def log_message(self, *args):
        pass


@pytest.fixture
def served():
    files, asked = {}, []
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Server, files, asked))
    threading.Thread(target=server.serve_forever, daemon=True).start()

    def put(path: str, content: bytes, kind: str = "text/csv", cut: int = 0, **headers: str) -> str:
        files[path] = (content, kind, {name.replace("_", "-"): value for name, value in headers.items()}, cut)
        return f"http://127.0.0.1:{server.server_address[1]}{path}"

    put.asked = asked
    yield put
    server.shutdown()
    server.server_close()


class TestUrls:
    def test_downloaded_once(self, served):
        url = served("/files/table.csv?x=1", TABLE.encode())
        for _ in range(2):
            found = surveyed(url)
            assert (found["rows"], Path(found["files"][0]).name) == (60, "table.csv")
        assert served.asked == [("/files/table.csv?x=1", None)]

    def test_archives_names_and_redirects(self, served, tmp_path):
        content = zipped(tmp_path / "a.zip", SPLIT_FILES).read_bytes()
        url = served("/d", content, "application/zip", Content_Disposition='attachment; filename="../../set.zip"')
        moved = served("/moved", b"", Location=url)
        assert surveyed(moved)["splits"] == {"train": 60, "validation": 8, "test": 9}
        assert local_copy(moved).name == "set.zip"
        assert tmp_path / "cache" in local_copy(moved).parents

    def test_interrupted_download_continues(self, served, monkeypatch):
        monkeypatch.setattr("time.sleep", lambda seconds: None)
        content = csv_text(labelled(9000)).encode()
        assert surveyed(served("/big.csv", content, cut=100_000))["rows"] == 9000
        assert served.asked == [("/big.csv", None), ("/big.csv", "bytes=100000-")]

    def test_an_earlier_download_continues_only_with_the_same_file(self, served, monkeypatch):
        monkeypatch.setattr("time.sleep", lambda seconds: None)
        monkeypatch.setattr(download, "_ATTEMPTS", 1)
        content = csv_text(labelled(9000)).encode()
        for path, tag in (("/tagged.csv", {"ETag": '"1"'}), ("/plain.csv", {})):
            url = served(path, content, cut=100_000, **tag)
            refused(url)
            assert surveyed(served(path, content, **tag))["rows"] == 9000
        assert served.asked == [
            *(("/tagged.csv", None), ("/tagged.csv", "bytes=100000-")),
            *(("/plain.csv", None), ("/plain.csv", None)),
        ]

    @pytest.mark.parametrize(
        ("path", "content", "kind"), [("/page", b"<html></html>", "text/html; charset=utf-8"), ("/none.csv", None, "")]
    )
    def test_pages_and_errors_are_refused(self, served, path, content, kind):
        url = served(path, content, kind)
        assert refused(url).setting == "data"

    @pytest.mark.parametrize(
        "url", ["ftp://example.org/a.csv", "file:///etc/passwd", "s3://bucket/a.csv", "https:///a.csv"]
    )
    def test_other_schemes_are_refused(self, url):
        assert refused(url).what.startswith(url)

    def test_redirects_to_other_schemes_are_refused(self, served):
        assert refused(served("/a.csv", b"", Location="file:///etc/passwd")).setting == "data"

    @pytest.mark.parametrize(
        ("rest", "advice"),
        [("stanfordnlp/imdb", "/resolve/main/FILE"), ("me/x/blob/main/a.csv", "datasets/me/x/resolve/main/a.csv")],
    )
    def test_a_hub_page_is_refused_with_the_right_address(self, rest, advice):
        assert advice in refused(f"https://huggingface.co/datasets/{rest}").try_next[0]

    def test_train_gets_the_file(self, served):
        url = served("/table.csv", TABLE.encode())
        request = with_local_data(TrainRequest(data=url, test=url))
        assert Path(request.data).read_text() == TABLE
        assert (request.test, request.validation) == (request.data, None)
        with pytest.raises(RequestError) as caught:
            with_local_data(TrainRequest(data=url, offline=True))
        assert caught.value.setting == "offline"
