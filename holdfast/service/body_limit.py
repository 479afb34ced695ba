"""Bounds what anybody can send: Django's ASGI handler puts a body on the disk before it looks at who sent it.

Uploads may be as large as the settings say, if the sender at least shows a token or a session; all else is small.
"""

import json
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from django.conf import settings

from holdfast.core.text import human_bytes

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[MutableMapping[str, Any], Receive, Send], Awaitable[None]]

SMALL_BYTES = 2 * 1024**2
_FORM_BYTES = 1024**2  # what a form adds around its file
_UPLOADS = ("/api/datasets", "/datasets")


class _TooLarge(Exception):
    pass


class BodyLimit:
    """Wraps the application."""

    def __init__(self, app: App):
        self._app = app

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        """Pass a request on unless its body is, or becomes, too large."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = dict(scope.get("headers") or ())
        most = _most_bytes(scope["path"], headers)
        declared = headers.get(b"content-length", b"0")
        if declared.isdigit() and int(declared) > most:
            await _refuse(send, most)
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
                await _refuse(send, most)


def _most_bytes(path: str, headers: dict[bytes, bytes]) -> int:
    is_upload = path.rstrip("/").startswith(_UPLOADS)
    is_known = b"authorization" in headers or settings.SESSION_COOKIE_NAME.encode() in headers.get(b"cookie", b"")
    return settings.UPLOAD_BYTES + _FORM_BYTES if is_upload and is_known else SMALL_BYTES


async def _refuse(send: Send, most: int) -> None:
    what = {"what": "the request is too large", "seen": f"{human_bytes(most)} at the most", "try_next": [], "slug": ""}
    body = json.dumps({"error": what}).encode()
    headers = [(b"content-type", b"application/json"), (b"connection", b"close")]
    await send({"type": "http.response.start", "status": 413, "headers": headers})
    await send({"type": "http.response.body", "body": body})
