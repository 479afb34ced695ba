"""Talks to a job service over HTTP: a token in the header, JSON in and out, every failure is explained.

Redirects are not followed: the token goes to the address that was given and nowhere else.
"""

import hashlib
import http.client
import json
import ssl
import time
import urllib.error
import urllib.request
import uuid
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any
from urllib.parse import quote, urlencode, urlsplit

import click
import msgspec

from holdfast import __version__
from holdfast.core.env import service_variable
from holdfast.core.errors import HoldfastError, MachineError, RequestError
from holdfast.core.text import closest, human_bytes

DEFAULT_SERVER = "http://127.0.0.1:8420"  # where `holdfast serve` is, on this machine
_ANSWER_SECONDS = 60.0
_ASK_SECONDS = 0.5
_CHUNK_BYTES = 1 << 20
_LOOPBACK = ("127.0.0.1", "localhost", "::1")
_MAKE_TOKEN = "make a token on the account page, or on the server's machine: holdfast jobs token"

Json = dict[str, Any]


class Unreachable(MachineError):
    """The server is not reachable at the moment."""


@dataclass(frozen=True, slots=True)
class Server:
    """A job service and its token."""

    url: str
    token: str

    def get(self, path: str, **query: object) -> Json:
        """Read something."""
        return self._json("GET", path + _query(query))

    def post(self, path: str, body: Mapping[str, object] | None = None) -> Json:
        """Change something."""
        return self._json("POST", path, json.dumps(dict(body or {})).encode())

    def delete(self, path: str) -> None:
        """Remove something."""
        self._json("DELETE", path)

    def upload(self, file: Path, name: str = "") -> Json:
        """Stream a file to the server."""
        body = _Form(file, name)
        headers = {"Content-Type": body.content_type, "Content-Length": str(len(body))}
        with body, self._open("POST", "/api/datasets", body, headers) as answer:
            return _object(answer.read(), self.url)

    def download(self, path: str) -> Iterator[bytes]:
        """Stream a download; a premature end is an error."""
        with self._open("GET", path) as answer:
            while chunk := self._chunk(answer):
                yield chunk

    def _chunk(self, answer: Any) -> bytes:
        try:
            return bytes(answer.read(_CHUNK_BYTES))
        except (OSError, http.client.HTTPException) as error:
            raise Unreachable("the download was interrupted", found=str(error) or type(error).__name__) from error

    def _json(self, method: str, path: str, body: bytes | None = None) -> Json:
        headers = {"Content-Type": "application/json"} if body is not None else {}
        with self._open(method, path, body, headers) as answer:
            return _object(answer.read(), self.url)

    def _open(self, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None) -> Any:
        known = {"Authorization": f"Bearer {self.token}", "User-Agent": f"holdfast/{__version__}"}
        request = urllib.request.Request(
            self.url + path,
            data=body,
            headers={**known, "Accept": "application/json", **(headers or {})},
            method=method,
        )
        try:
            return _opener(self.url).open(request, timeout=_ANSWER_SECONDS)
        except urllib.error.HTTPError as error:
            with error:
                raise _refusal(error, self.url) from None
        except (urllib.error.URLError, OSError, http.client.HTTPException) as error:
            raise _unreachable(error, self.url) from error


def find_server(url: str | None, token: str | None) -> Server:
    """The server by its options, by HOLDFAST_SERVER and HOLDFAST_TOKEN, or the one on this machine."""
    address = _whole_address((url or service_variable("SERVER") or DEFAULT_SERVER).strip()).rstrip("/")
    parts = urlsplit(address)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.username:
        raise RequestError(
            "the server's address is not valid",
            found=f"{address!r}",
            try_next=("--server https://holdfast.example.org", "or HOLDFAST_SERVER=..."),
        )
    key = (token or service_variable("TOKEN")).strip()
    if not key or not key.isascii() or not key.isprintable():
        raise RequestError(
            "the token is missing" if not key else "the token is malformed",
            try_next=("HOLDFAST_TOKEN=hfk_...  (or --token, which others on this machine can see)", _MAKE_TOKEN),
        )
    return Server(address, key)


def is_in_the_open(server: Server) -> bool:
    """Whether the token is sent unencrypted over a network."""
    parts = urlsplit(server.url)
    return parts.scheme == "http" and parts.hostname not in _LOOPBACK


def patiently(ask: Any, tell: Any, wait_seconds: float = 2.0) -> Any:
    """Ask until the server answers: it may restart while someone watches."""
    is_reported = False
    while True:
        try:
            answer = ask()
        except Unreachable as error:
            if not is_reported:
                tell(f"{error.what} ({error.found}); the run continues, retrying")
                is_reported = True
            time.sleep(wait_seconds)
        else:
            return answer


def _whole_address(given: str) -> str:
    """The address with its scheme: https by default, http for this machine."""
    if "://" in given:
        return given
    return f"http://{given}" if urlsplit(f"//{given}").hostname in _LOOPBACK else f"https://{given}"


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None


def _opener(url: str) -> urllib.request.OpenerDirector:
    handlers: list[Any] = [_NoRedirects()]
    if urlsplit(url).hostname in _LOOPBACK:
        handlers.append(urllib.request.ProxyHandler({}))  # no proxy can reach this machine for us
    return urllib.request.build_opener(*handlers)


def _refusal(error: urllib.error.HTTPError, url: str) -> HoldfastError:
    """The error that the server answered with."""
    if 300 <= error.code < 400:
        target = error.headers.get("Location", "")
        raise RequestError(
            f"{url} redirects to another address",
            found=f"to {target}",
            try_next=(f"--server {target.partition('/api/')[0]}",),
        )
    try:
        refused = error_of(json.loads(error.read(100_000))["error"])
    except (ValueError, KeyError, TypeError, msgspec.ValidationError, OSError, http.client.HTTPException):
        return RequestError(f"{url} is not a Holdfast server", found=f"it answered {error.code} {error.reason}")
    if error.code == 401:
        return RequestError(
            "the token was refused",
            found=f"by {url}; it may be mistyped, expired or revoked",
            try_next=(_MAKE_TOKEN,),
        )
    if error.code >= 500:
        return Unreachable(f"{url} has a problem", found=f"it answered {error.code}: {refused.what}")
    return refused


def _unreachable(error: Exception, url: str) -> HoldfastError:
    reason = getattr(error, "reason", error)
    if isinstance(reason, ssl.SSLCertVerificationError):
        return RequestError(
            f"the certificate of {url} is not trusted",
            found=reason.verify_message,
            try_next=("SSL_CERT_FILE=FILE, with the certificate of the authority that signed it",),
        )
    if isinstance(reason, ssl.SSLError):
        return RequestError(f"{url} does not speak TLS", found=str(reason), try_next=("--server http://...",))
    words = getattr(reason, "strerror", None) or str(reason) or type(reason).__name__
    return Unreachable(f"{url} does not respond", found=str(words), try_next=("holdfast serve", "--server URL"))


def _object(text: bytes, url: str) -> Json:
    if not text:
        return {}
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise RequestError(f"{url} is not a Holdfast server", found=f"it answered {text[:60]!r}")
    return found


def _query(query: Mapping[str, object]) -> str:
    given = {name: value for name, value in query.items() if value not in (None, "", ())}
    return f"?{urlencode(given, doseq=True)}" if given else ""


class _Form:
    """A form with one file, as a stream of known length."""

    def __init__(self, file: Path, name: str):
        boundary = uuid.uuid4().hex
        self.content_type = f"multipart/form-data; boundary={boundary}"
        field = f'--{boundary}\r\nContent-Disposition: form-data; name="name"\r\n\r\n{name}\r\n' if name else ""
        file_name = quote(file.name, safe=" .()[]+,=@~!$&'")
        about = f'Content-Disposition: form-data; name="file"; filename="{file_name}"\r\n'
        self._head = f"{field}--{boundary}\r\n{about}Content-Type: application/octet-stream\r\n\r\n".encode()
        self._tail = f"\r\n--{boundary}--\r\n".encode()
        self._file: IO[bytes] = file.open("rb")
        self._left_bytes = file.stat().st_size  # a file that grows meanwhile is sent as it was
        self._length = len(self._head) + self._left_bytes + len(self._tail)

    def __len__(self) -> int:
        return self._length

    def __enter__(self) -> "_Form":
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def read(self, size: int = -1) -> bytes:
        """The next block."""
        if self._head:
            head, self._head = self._head, b""
            return head
        if self._left_bytes:
            chunk = self._file.read(min(self._left_bytes, _CHUNK_BYTES))
            if not chunk:
                raise OSError("the file was truncated during the upload")
            self._left_bytes -= len(chunk)
            return chunk
        tail, self._tail = self._tail, b""
        return tail


def find_dataset(server: Server, data: str, *, as_json: bool) -> Json:
    """The dataset that a number or a name stands for, or a file, which is uploaded."""
    path = Path(data)
    if path.is_file():
        return _uploaded(server, path, as_json=as_json)
    if path.is_dir():
        raise RequestError(
            f"{data} is a folder", found="one file can be uploaded", try_next=(f"zip -r {path.name}.zip {data}",)
        )
    if data.isascii() and data.isdecimal():
        return server.get(f"/api/datasets/{data}")
    known = server.get("/api/datasets", contains=data, limit=200)["items"]
    named: list[Json] = [one for one in known if one["name"] == data]
    if named:
        return named[0]
    names = [one["name"] for one in server.get("/api/datasets", limit=200)["items"]]
    guess = closest(data, names)
    raise RequestError(
        f"there is no file and no dataset {data!r}", try_next=(f"did you mean {guess}?",) if guess else ()
    )


def _uploaded(server: Server, path: Path, *, as_json: bool) -> Json:
    """The file as a dataset. One that was sent before is used again, unless someone changed its choices."""
    say = (lambda words: None) if as_json else click.echo
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    same = server.get("/api/datasets", sha256=digest, state="ready")["items"]
    dataset: Json | None = next((one for one in same if not one["choices"]), None)
    if dataset:
        say(f"[ok] dataset {dataset['id']}, {dataset['name']}: uploaded before")
        return dataset
    say(f"[..] uploading {path.name}, {human_bytes(path.stat().st_size)}")
    dataset = server.upload(path)
    while dataset["state"] == "surveying":
        time.sleep(_ASK_SECONDS)
        dataset = server.get(f"/api/datasets/{dataset['id']}")
    if dataset["state"] == "refused":
        raise error_of(dataset["problem"] or {"what": f"{path.name} was refused"})
    say(f"[ok] dataset {dataset['id']}, {dataset['name']}: surveyed")
    return dataset


class ApiError(msgspec.Struct, frozen=True):
    """An error as the API returns it, without what only programs need."""

    what: str
    found: str = ""
    try_next: tuple[str, ...] = ()
    slug: str = ""


def error_of(said: Json) -> RequestError:
    """An error that the API returned."""
    found = msgspec.convert(said, ApiError)
    return RequestError(found.what, found=found.found, try_next=found.try_next, slug=found.slug)


def save_download(server: Server, path: str, target: Path) -> int:
    """Write a download; the file is there only when it is whole."""
    draft = target.with_name(f".{target.name}.draft")
    count = 0
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with draft.open("wb") as file:
            for chunk in server.download(path):
                count += file.write(chunk)
        draft.replace(target)
    except OSError as error:
        raise RequestError(f"{target} cannot be written", found=error.strerror or str(error)) from error
    finally:
        draft.unlink(missing_ok=True)
    return count


def unpack_model(zipped: Path, folder: Path) -> None:
    """Make a folder of a zip, whole or not at all."""
    draft = folder.with_name(f".{folder.name}.draft")
    try:
        with zipfile.ZipFile(zipped) as packed:  # extractall keeps every name inside the folder
            packed.extractall(draft)
        draft.replace(folder)
    except zipfile.BadZipFile as error:
        raise RequestError("the download is incomplete", found=str(error), try_next=("repeat the command",)) from error
    finally:
        zipped.unlink(missing_ok=True)
