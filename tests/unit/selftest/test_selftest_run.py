"""The order and the limits of the self-test's parts; what each part finds is tested in the lab."""

import json
import threading
import zipfile

import pytest

from holdfast.core.errors import RequestError
from holdfast.selftest import selftest_run
from holdfast.selftest.selftest_run import PARTS, run_selftest
from holdfast.selftest.workplace import PartResult


def test_parts_that_raise_or_hang_do_not_stop_the_others(tmp_path, monkeypatch):
    never = threading.Event()

    def raises(place):
        raise ValueError("no answer")

    def works(place):
        return PartResult(name="heartbeat", state="ok", summary="it beats")

    works_by_name = {"machine": raises, "processes": lambda place: never.wait(), "heartbeat": works}
    monkeypatch.setattr(selftest_run, "_works", lambda: works_by_name)
    monkeypatch.setattr(selftest_run, "_LIMITS", {"processes": 0.2})
    shown = []
    found, bundle = run_selftest((), tmp_path / "sent.zip", shown.append)
    never.set()
    assert [(part.name, part.state) for part in found.parts] == [
        ("machine", "failed"),
        ("processes", "failed"),
        ("heartbeat", "ok"),
    ]
    assert found.failed == ("machine", "processes")
    assert shown == list(found.parts)
    with zipfile.ZipFile(bundle.file) as packed:
        answers = json.loads(packed.read("selftest.json"))
    assert [part["state"] for part in answers["parts"]] == ["failed", "failed", "ok"]


def test_parts_after_the_last_second_are_skipped(tmp_path, monkeypatch):
    monkeypatch.setattr(selftest_run, "ALL_SECONDS", 0.0)
    found, _ = run_selftest((), tmp_path / "sent.zip")
    assert [part.name for part in found.parts] == list(PARTS)
    assert {part.state for part in found.parts} == {"skipped"}
    assert not found.failed


def test_unknown_part_and_existing_file_are_refused(tmp_path):
    with pytest.raises(RequestError) as refused:
        run_selftest(("classify", "classsify"), None)
    assert "classsify" in refused.value.what
    (tmp_path / "sent.zip").touch()
    with pytest.raises(RequestError):
        run_selftest((), tmp_path / "sent.zip")
