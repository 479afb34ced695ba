"""Request bodies are limited before they are read."""

import asyncio

import pytest
from django.test import Client

from holdfast.service.body_limit import SMALL_BYTES, BodyLimit


def bodies(*sizes):
    """An ASGI receive that gives pieces of these sizes."""
    pieces = [{"type": "http.request", "body": b"x" * size, "more_body": True} for size in sizes]
    pieces.append({"type": "http.request", "body": b"", "more_body": False})

    async def receive():
        return pieces.pop(0)

    return receive


LONG = (b"content-length", str(2 * SMALL_BYTES).encode())
HUGE = (b"content-length", str(10**12).encode())


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(
    ("path", "shown", "more", "sizes", "status"),
    [
        ("/api/jobs", "", [], [SMALL_BYTES // 2, SMALL_BYTES // 2], 200),
        ("/api/jobs", "", [], [SMALL_BYTES, 1], 413),
        ("/api/jobs", "token", [HUGE], [], 413),
        ("/api/datasets", "", [], [SMALL_BYTES, 1], 413),
        ("/api/datasets", "", [LONG], [], 401),
        ("/api/datasets", "token", [], [SMALL_BYTES, SMALL_BYTES], 200),
        ("/api/datasets", "token", [LONG], [SMALL_BYTES, SMALL_BYTES], 200),
        ("/api/datasets", "token", [HUGE], [], 413),
        ("/datasets/new", "session", [LONG], [SMALL_BYTES, SMALL_BYTES], 200),
        ("/api/datasets", "reading token", [LONG], [], 401),
        ("/api/datasets", "made-up token", [LONG], [], 401),
        ("/api/datasets", "made-up token", [], [SMALL_BYTES, 1], 413),
        ("/datasets/new", "made-up session", [LONG], [], 401),
        ("/api/datasets/../jobs", "made-up token", [(b"content-length", b"-5")], [1], 200),
    ],
)
def test_body_size_is_limited_before_reading(world, path, shown, more, sizes, status):
    assert sent_to(world, path, shown, more, sizes)[0]["status"] == status


@pytest.mark.django_db(transaction=True)
def test_upload_without_space_is_refused_first(world, settings):
    settings.FREE_BYTES = 10**18
    start, body = sent_to(world, "/api/datasets", "token", [LONG], [])
    assert start["status"] == 413
    assert b"space" in body["body"]


def sent_to(world, path, shown, more, sizes):
    """What is answered to a body of these pieces, from somebody who shows this."""
    sent = []
    session = Client()
    session.force_login(world.ada)
    world.client("ada", scope="read")
    headers = {
        "": [],
        "token": [(b"authorization", f"Bearer {world.texts['ada']}".encode())],
        "reading token": [(b"authorization", f"Bearer {world.texts['ada read']}".encode())],
        "made-up token": [(b"authorization", b"Bearer hfk_" + b"a" * 40)],
        "session": [(b"cookie", f"a=b; sessionid={session.cookies['sessionid'].value}".encode())],
        "made-up session": [(b"cookie", b"sessionid=" + b"a" * 32)],
    }[shown]

    async def app(scope, receive, send):
        while (await receive())["more_body"]:
            pass
        await send({"type": "http.response.start", "status": 200, "headers": []})

    async def send(message):
        sent.append(message)

    scope = {"type": "http", "method": "POST", "path": path, "headers": [*headers, *more]}
    asyncio.run(BodyLimit(app)(scope, bodies(*sizes), send))
    return sent
