"""Shared fixtures of the service's tests."""

import pytest
from django.contrib.auth.models import User
from django.test import Client

from holdfast.service import object_store, outbox
from holdfast.service.home import this_home
from holdfast.service.jobs import datasets, leases, registry, webhooks
from holdfast.service.jobs.models import Dataset
from holdfast.service.object_store import open_store
from holdfast.service.outbox import send_outbox
from tests.service.replicas import hold
from tests.service.world import World, make_world


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A home of the service's own for one test."""
    monkeypatch.setenv("HOLDFAST_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def world(db, home, monkeypatch) -> World:
    """One of everything; nothing in it starts a process or reaches a network."""
    monkeypatch.setattr(datasets, "begin", lambda *_: FakeChild())
    monkeypatch.setattr(registry, "predict", lambda model, texts: [{"label": "card"} for _ in texts])
    monkeypatch.setattr(webhooks, "_lookup", unreachable)
    return make_world()


class FakeChild:
    """A survey that is still at work."""

    def poll(self):
        return None


def unreachable(host, port):
    raise OSError(f"{host} is not asked in a test")


@pytest.fixture
def ada(db):
    return User.objects.create_user("ada", password="pw")


@pytest.fixture
def page(ada):
    client = Client()
    client.force_login(ada)
    return client


@pytest.fixture
def data(ada):
    return Dataset.objects.create(owner=ada, name="words", file_name="words.csv", state="ready", facts={"rows": 200})


@pytest.fixture
def as_person(world):
    """A browser with a logged-in user."""

    def enter(name):
        client = Client()
        client.force_login(getattr(world, name))
        return client

    return enter


@pytest.fixture
def store(settings, tmp_path):
    """A store that the machines of a service share."""
    settings.STORE = f"file://{tmp_path}/store"
    object_store._open.cache_clear()
    outbox._sent_datasets.clear()
    yield open_store()
    object_store._open.cache_clear()


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
    send_outbox(store)
    made = leases.submit(owner=ada, name="words", dataset=data, request={"task": "classify"})
    return hold(made, 0)
