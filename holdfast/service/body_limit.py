"""Limits the size of request bodies: Django's ASGI handler writes a body to disk before it checks who sent it.

Uploads may be as large as the settings allow if the token or session is valid and the disk has room. All other bodies
must be small.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, MutableMapping
from importlib import import_module
from typing import Any

from django.conf import settings
from django.db import Error as DatabaseError
from django.db import connections
from django.http import HttpRequest, parse_cookie

from holdfast.core.errors import HoldfastError, RequestError
from holdfast.core.text import human_bytes

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Any, Any, Any], Awaitable[None]]

SMALL_BYTES = 2 * 1024**2
_FORM_BYTES = 1024**2  # what a form adds around its file
_UPLOADS = ("/api/datasets", "/datasets")


class _TooLarge(Exception):
    pass


class BodyLimit:
    """Wraps the ASGI application."""

    def __init__(self, app: App):
        self._app = app

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        """Pass on a request unless its body is, or grows, too large."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = dict(scope.get("headers") or ())
        declared = headers.get(b"content-length", b"")
        size = int(declared) if declared.isdigit() else None
        most = SMALL_BYTES
        if _is_upload(scope) and (size is None or size > SMALL_BYTES):
            is_known = await asyncio.to_thread(_is_authenticated, headers)
            most = settings.UPLOAD_BYTES + _FORM_BYTES if is_known else SMALL_BYTES
            if not is_known and size:
                await _refuse(send, 401, _NOT_LOGGED_IN)
                return
        if size is not None and size > most:
            await _refuse(send, 413, _too_large(most))
            return
        if size is not None and size > SMALL_BYTES and (problem := await asyncio.to_thread(_no_room, size)):
            await _refuse(send, 413, problem)
            return
        received = 0
        is_answered = False

        async def counted() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            if received > most:
                raise _TooLarge
            return message

        async def watched(message: Message) -> None:
            nonlocal is_answered
            is_answered = True
            await send(message)

        try:
            await self._app(scope, counted, watched)
        except _TooLarge:
            if not is_answered:
                await _refuse(send, 413, _too_large(most))


def _is_upload(scope: MutableMapping[str, Any]) -> bool:
    return bool(scope["method"] == "POST" and scope["path"].startswith(_UPLOADS))


def _is_authenticated(headers: dict[bytes, bytes]) -> bool:
    """Whether the token or session of the request is valid."""
    from django.contrib.auth import get_user

    from holdfast.service.jobs.api_tokens import find_token

    shown = {name: headers.get(name, b"").decode("latin-1") for name in (b"authorization", b"cookie")}
    try:
        if shown[b"authorization"]:
            token = find_token(shown[b"authorization"].partition(" ")[2].strip())
            return token is not None and token.allows("submit")
        request = HttpRequest()
        key = parse_cookie(shown[b"cookie"]).get(settings.SESSION_COOKIE_NAME)
        request.session = import_module(settings.SESSION_ENGINE).SessionStore(key)
        return bool(get_user(request).is_authenticated)
    except DatabaseError:
        return False
    finally:
        connections.close_all()


def _no_room(size: int) -> HoldfastError | None:
    from holdfast.service.jobs.uploads import check_room

    try:
        check_room(size)
    except HoldfastError as error:
        return error
    return None


def _too_large(most: int) -> HoldfastError:
    return RequestError("the request is too large", found=f"the limit is {human_bytes(most)}")


_NOT_LOGGED_IN = RequestError(
    "the upload was refused",
    found=f"you are not logged in; without a login the limit is {human_bytes(SMALL_BYTES)}",
    try_next=("log in again, then upload the file again",),
)


async def _refuse(send: Send, status: int, error: HoldfastError) -> None:
    from holdfast.service.jobs.shown_errors import api_error

    body = json.dumps({"error": api_error(error)}).encode()
    headers = [(b"content-type", b"application/json"), (b"connection", b"close")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
