"""Sends a notice to a webhook: signed, once, without following redirects, and only to public addresses.

The host name is resolved here, and the connection goes to the address that was checked, so that a name that resolves
differently the second time gains nothing.
"""

import contextlib
import hashlib
import hmac
import http.client
import ipaddress
import json
import socket
import ssl
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import SplitResult, urlsplit

from holdfast import __version__
from holdfast.core.env import service_variable
from holdfast.core.errors import HoldfastError, Problem, RequestError, found_text, invalid_settings
from holdfast.service.jobs.models import Hook

_ANSWER_SECONDS = 10.0  # for each read and write
_WHOLE_SECONDS = 20.0  # for all of it: a server that responds byte by byte must not block
_SHOWN_BYTES = 200
_NAT64 = ipaddress.ip_network("64:ff9b::/96")


@dataclass(frozen=True, slots=True)
class Delivery:
    """Whether a message was delivered, and the response."""

    arrived: bool
    said: str


def check_address(url: str) -> None:
    """Refuse an invalid webhook address; host names are resolved only when something is sent."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        parts, port = urlsplit(""), None
    problem = ""
    if parts.scheme not in ("http", "https") or not parts.hostname or port == 0 or len(url) > 500:
        problem = "must be an address such as https://example.org/holdfast, with at most 500 characters"
    elif not url.isascii() or not url.isprintable() or " " in url:
        problem = "contains invalid characters"
    elif parts.username or parts.password:
        problem = "must not contain a user name or password; messages are signed instead"
    elif _is_literal(parts.hostname) and not _may_reach(parts.hostname):
        problem = f"{parts.hostname} is an address of this machine or of a private network"
    if problem:
        raise invalid_settings([Problem("target", problem)])


def signature(key: str, at: int, body: bytes) -> str:
    """The signature header: HMAC-SHA256 over the time, a full stop and the body, with the hook's key."""
    made = hmac.new(key.encode(), f"{at}.".encode() + body, hashlib.sha256).hexdigest()
    return f"t={at},v1={made}"


def deliver(hook: Hook, event: str, number: int, about: Mapping[str, Any]) -> Delivery:
    """Post one message to a hook; the number tells a second copy from a second message."""
    parts = urlsplit(hook.target)
    body = json.dumps({"id": number, **about}, ensure_ascii=False).encode()
    headers = {
        "Content-Type": "application/json",
        "User-Agent": f"holdfast/{__version__}",
        "X-Holdfast-Event": event,
        "X-Holdfast-Notice": str(number),
        "X-Holdfast-Signature": signature(hook.key, int(time.time()), body),
    }
    try:
        check_address(hook.target)
        address = _allowed_address(parts)
        return _post(parts, address, body, headers)
    except HoldfastError as error:
        return Delivery(False, f"{error.what}: {found_text(error)}")
    except (OSError, http.client.HTTPException, ValueError) as error:
        return Delivery(False, f"{type(error).__name__}: {error}")


def _post(parts: SplitResult, address: str, body: bytes, headers: dict[str, str]) -> Delivery:
    connection = _connection(parts, address)
    ender = threading.Timer(_WHOLE_SECONDS, _end, [connection])
    ender.daemon = True
    ender.start()
    try:
        connection.request("POST", (parts.path or "/") + (f"?{parts.query}" if parts.query else ""), body, headers)
        answer = connection.getresponse()
        said = answer.read(_SHOWN_BYTES).decode("utf-8", "replace")
    finally:
        ender.cancel()
        connection.close()
    arrived = 200 <= answer.status < 300
    why = " (redirects are not followed)" if 300 <= answer.status < 400 else ""
    return Delivery(arrived, f"HTTP {answer.status}{why} {said if not arrived else ''}".strip())


def _connection(parts: SplitResult, address: str) -> http.client.HTTPConnection:
    host = parts.hostname or ""
    if parts.scheme == "https":
        return _PinnedTls(host, parts.port, address)
    return _Pinned(host, parts.port, address)


class _Pinned(http.client.HTTPConnection):
    """Sends the host's name, and connects to the address that was checked."""

    def __init__(self, host: str, port: int | None, address: str):
        super().__init__(host, port, timeout=_ANSWER_SECONDS)
        self._address = address

    def connect(self) -> None:
        self.sock = socket.create_connection((self._address, self.port), _ANSWER_SECONDS)


class _PinnedTls(http.client.HTTPSConnection):
    """The same over TLS; the certificate must match the name."""

    def __init__(self, host: str, port: int | None, address: str):
        self._seal = ssl.create_default_context()
        super().__init__(host, port, timeout=_ANSWER_SECONDS, context=self._seal)
        self._address = address

    def connect(self) -> None:
        plain = socket.create_connection((self._address, self.port), _ANSWER_SECONDS)
        # Set before the handshake, which can be as slow as the rest: `_end` must find it.
        self.sock = sealed = self._seal.wrap_socket(plain, server_hostname=self.host, do_handshake_on_connect=False)
        sealed.do_handshake()


def _end(connection: http.client.HTTPConnection) -> None:
    with contextlib.suppress(OSError):
        if connection.sock is not None:
            connection.sock.shutdown(socket.SHUT_RDWR)


def _allowed_address(parts: SplitResult) -> str:
    """The first address of a host name, if all its addresses are public."""
    port = parts.port or (443 if parts.scheme == "https" else 80)
    addresses = [str(entry[4][0]) for entry in _lookup(parts.hostname or "", port)]
    refused = [address for address in addresses if not _may_reach(address)]
    if refused or not addresses:
        raise RequestError(
            "the webhook's address is not allowed",
            found=f"{parts.hostname} resolves to an address of this machine or a private network"
            if refused
            else f"{parts.hostname} does not resolve",
        )
    return addresses[0]


def _lookup(host: str, port: int) -> list[Any]:
    return list(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))


def _is_literal(host: str) -> bool:
    try:
        ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    return True


def _may_reach(address: str) -> bool:
    """Whether an address is public; HOLDFAST_HOOKS_LOCAL=1 also allows local and private ones."""
    if service_variable("HOOKS_LOCAL") == "1":
        return True
    found = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(found, ipaddress.IPv6Address):
        inner = found.ipv4_mapped or found.sixtofour or (found.teredo or (None, None))[1]
        if found in _NAT64:
            inner = ipaddress.IPv4Address(int(found) & 0xFFFFFFFF)
        if inner is not None:
            found = inner
    return found.is_global and not found.is_multicast
