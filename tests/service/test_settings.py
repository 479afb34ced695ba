"""What the settings promise: faults are written down, connections are not left behind, the key is whole."""

import io
import logging
import threading

import pytest
from django.test import Client

from holdfast.service.databases import database_settings
from holdfast.service.home import Home
from holdfast.service.pages.views import entry


@pytest.fixture
def written(monkeypatch):
    """What goes to standard error, and so to web.log."""
    stream = io.StringIO()
    for handler in logging.getLogger("django").handlers:
        monkeypatch.setattr(handler, "stream", stream)
    return stream


@pytest.mark.django_db
def test_a_page_that_breaks_leaves_its_trace_in_the_log(written, monkeypatch):
    monkeypatch.setattr(entry, "use_link", lambda token: 1 / 0)
    assert Client(raise_request_exception=False).get("/once/a").status_code == 500
    assert "ZeroDivisionError" in written.getvalue()
    assert "Traceback" in written.getvalue()


@pytest.mark.django_db
def test_strangers_cannot_fill_the_log(written):
    for path in ("/", "/api/me", "/nowhere"):
        assert Client(raise_request_exception=False).get(path, headers={"Host": "evil.example"}).status_code == 400
        Client().get(path)
    assert written.getvalue() == ""


def test_no_connection_outlives_the_thread_of_its_request(tmp_path):
    given = database_settings("postgresql://ada:secret@db:5432/holdfast?sslmode=require", tmp_path / "none")
    assert not given.get("CONN_MAX_AGE")
    assert given["OPTIONS"] == {"connect_timeout": 5, "sslmode": "require"}


def test_of_many_that_start_at_once_all_get_the_same_whole_key(tmp_path):
    home, found = Home(tmp_path / "home"), []
    threads = [threading.Thread(target=lambda: found.append(home.secret_key())) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8
    assert len(set(found)) == 1
    assert len(found[0]) > 50
    assert (home.folder / "secret.key").stat().st_mode & 0o777 == 0o600
    assert [path.name for path in home.folder.glob(".secret*")] == []
