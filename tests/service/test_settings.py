"""`serve` and its settings: errors are logged, the key is complete, no home gets the wrong database."""

import io
import logging
import os
import socket
import subprocess
import sys
import threading
from collections import namedtuple

import pytest
from django.test import Client

from holdfast.core.errors import MachineError, RequestError
from holdfast.service import hosts, local_service
from holdfast.service.first_login import first_user, make_link, use_link
from holdfast.service.home import Home
from holdfast.service.hosts import hosts_of
from holdfast.service.pages.views import login_views as entry
from holdfast.service.settings import database_settings


@pytest.fixture
def written(monkeypatch):
    """What goes to standard error, and so to web.log."""
    stream = io.StringIO()
    for handler in logging.getLogger("django").handlers:
        monkeypatch.setattr(handler, "stream", stream)
    return stream


@pytest.mark.django_db
def test_page_errors_are_logged(written, monkeypatch):
    monkeypatch.setattr(entry, "owner_of_link", lambda token: 1 / 0)
    assert Client(raise_request_exception=False).get("/once/a").status_code == 500
    assert "ZeroDivisionError" in written.getvalue()
    assert "Traceback" in written.getvalue()


@pytest.mark.django_db
def test_strangers_cannot_fill_the_log(written):
    for path in ("/", "/api/me", "/nowhere"):
        assert Client(raise_request_exception=False).get(path, headers={"Host": "evil.example"}).status_code == 400
        Client().get(path)
    assert written.getvalue() == ""


@pytest.mark.django_db
def test_foreign_host_name_is_refused_with_a_reason(settings):
    settings.ALLOWED_HOSTS = list(hosts_of("0.0.0.0", ["train.example.org"]))
    assert Client().get("/login", headers={"Host": "train.example.org"}).status_code == 200
    assert Client().get("/login", headers={"Host": f"{socket.gethostname()}:8420"}).status_code == 200
    answer = Client(raise_request_exception=False).get("/login", headers={"Host": "evil.example"})
    assert answer.status_code == 400
    assert "HOLDFAST_HOSTS" in answer.content.decode()


def test_public_service_answers_to_the_machines_names(monkeypatch):
    address = namedtuple("address", "family address")
    own = [address(socket.AF_INET, "10.1.2.3"), address(socket.AF_INET6, "2001:db8::7")]
    other = [address(socket.AF_INET6, "fe80::1%eth0"), address(socket.AF_PACKET, "02:00:00:00:00:01")]
    monkeypatch.setattr(hosts.psutil, "net_if_addrs", lambda: {"eth0": own + other})
    monkeypatch.setattr(socket, "gethostname", lambda: "Box")
    monkeypatch.setattr(socket, "getfqdn", lambda: "box.example.org")
    expected = ("localhost", "127.0.0.1", "[::1]", "box", "box.example.org", "10.1.2.3", "[2001:db8::7]", "more")
    assert hosts_of("0.0.0.0", ["more", " "]) == hosts_of("::", ["more"]) == expected
    assert hosts_of("127.0.0.1", ["more"]) == ("localhost", "127.0.0.1", "[::1]", "more")
    assert hosts_of("2001:db8::7") == ("localhost", "127.0.0.1", "[::1]", "[2001:db8::7]")
    assert hosts_of("box.lan") == ("localhost", "127.0.0.1", "[::1]", "box.lan")


def test_no_connection_outlives_the_thread_of_its_request(tmp_path):
    given = database_settings("postgresql://ada:secret@db:5432/holdfast?sslmode=require", tmp_path / "none")
    assert not given.get("CONN_MAX_AGE")
    assert given["OPTIONS"] == {"connect_timeout": 5, "sslmode": "require"}


def test_concurrent_starts_share_one_secret_key(tmp_path):
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


class _Fresh:
    """A database without tables."""

    def __init__(self, connection):
        self.loader = self
        self.applied_migrations, self.disk_migrations = {}, {}


def test_new_database_is_refused_over_another_home(home, monkeypatch):
    migrated = []
    monkeypatch.setattr(local_service, "MigrationExecutor", _Fresh)
    monkeypatch.setattr(local_service, "call_command", lambda name, **_: migrated.append(name))
    folder = Home(home)
    local_service._migrate(folder)
    folder.make()
    local_service._migrate(folder)
    assert migrated == ["migrate", "migrate"]
    (folder.runs / "1").mkdir()
    with pytest.raises(RequestError, match="another database"):
        local_service._migrate(folder)
    assert migrated == ["migrate", "migrate"]


@pytest.mark.parametrize(
    ("tls", "proxies", "is_believed"), [(False, "", False), (False, "10.0.0.1", True), (True, "", True)]
)
def test_forwarded_address_counts_only_behind_a_proxy(home, settings, monkeypatch, tls, proxies, is_believed):
    settings.TLS = tls
    monkeypatch.delenv("FORWARDED_ALLOW_IPS", raising=False)
    if proxies:
        monkeypatch.setenv("FORWARDED_ALLOW_IPS", proxies)
    made = local_service._Service(local_service.Address(host="127.0.0.1", port=8420), Home(home), print)
    assert ("--no-proxy-headers" not in made._commands["web"]) == is_believed


@pytest.mark.django_db
def test_service_starter_becomes_admin_if_none_is_left(django_user_model):
    first = first_user("ada")
    assert first.is_superuser
    assert not first.has_usable_password()
    assert first_user("bob") == first
    first.set_password("a long enough one")
    first.is_active = False
    first.save()
    again = first_user("ada")
    assert (again, again.is_active, again.is_superuser) == (first, True, True)
    assert again.check_password("a long enough one")
    link = make_link(again).rpartition("/")[2]
    assert use_link(link) == again
    assert use_link(link) is None


def test_uncreatable_home_is_a_clear_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(MachineError) as refused:
        Home(tmp_path / "file").secret_key()
    assert refused.value.try_next[0].startswith("--home FOLDER")


def test_home_that_others_could_read_is_closed_to_them(tmp_path):
    home = Home(tmp_path / "open")
    home.folder.mkdir(mode=0o755)
    home.make()
    assert home.folder.stat().st_mode & 0o077 == 0


def test_example_key_from_the_documentation_is_refused(tmp_path):
    given = {**os.environ, "HOLDFAST_HOME": str(tmp_path), "HOLDFAST_SECRET_KEY": "..."}
    command = [sys.executable, "-c", "import holdfast.service.settings"]
    ended = subprocess.run(command, env=given, capture_output=True, text=True, timeout=60)
    assert "RequestError: HOLDFAST_SECRET_KEY" in ended.stderr
