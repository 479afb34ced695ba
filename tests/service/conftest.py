"""What tests of the service share."""

import pytest
from django.contrib.auth.models import User
from django.test import Client

from holdfast.service.jobs import datasets, registry, webhooks
from holdfast.service.jobs.models import Dataset
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
    """A browser in which somebody is logged in."""

    def enter(name):
        client = Client()
        client.force_login(getattr(world, name))
        return client

    return enter
