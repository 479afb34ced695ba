"""Downloads a data file from an http or https address, once, into the cache.

Only the command line and the Python API download; the service never opens an address that a user gave.
"""

import hashlib
import http.client
import re
import time
import urllib.error
import urllib.parse
import urllib.request
from email.message import Message
from pathlib import Path
from typing import IO, Any

from holdfast.core.disk_space import FULL, why_not
from holdfast.core.env import cache_folder
from holdfast.core.errors import HoldfastError, MachineError, RequestError
from holdfast.core.progress import Progress, no_progress
from holdfast.core.text import human_bytes

MOST_BYTES = 50_000_000_000
WAIT_SECONDS = 30.0  # for an answer, and for more data
_ATTEMPTS = 3
_CHUNK_BYTES = 1 << 20
_HUB_PAGE = re.compile(
    r"^https?://(www\.)?(huggingface\.co|hf\.co)/datasets/(?P<name>[^/]+/[^/]+|[^/]+)/?(?P<rest>.*)$"
)


class _SafeRedirects(urllib.request.HTTPRedirectHandler):
    """Follows redirects to http and https only."""

    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Any:
        """Refuse another scheme."""
        _check_scheme(newurl)
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def local_copy(url: str, on_progress: Progress = no_progress) -> Path:
    """The file at an address, downloaded now or earlier."""
    _check_scheme(url)
    _refuse_hub_page(url)
    home = cache_folder() / "downloads" / hashlib.sha256(url.encode()).hexdigest()[:24]
    if home.is_dir() and (known := [path for path in home.iterdir() if not path.name.endswith(".part")]):
        return known[0]
    try:
        home.mkdir(parents=True, exist_ok=True)
        return _download(url, home, on_progress)
    except OSError as error:
        if error.errno not in FULL:
            raise
        raise MachineError(
            f"disk full: the download does not fit in {home.parent}",
            found=why_not(error, home.parent),
            try_next=("free some space, or set XDG_CACHE_HOME to a folder on another disk",),
            slug="disk-full",
        ) from error


def _download(url: str, home: Path, on_progress: Progress) -> Path:
    part, tag_file = home / "data.part", home / "tag.part"
    tag = tag_file.read_text(encoding="utf-8") if tag_file.exists() else ""
    if not tag:  # left by an earlier download: nothing says whether the file at the address is still the same
        part.unlink(missing_ok=True)
    for attempt in range(1, _ATTEMPTS + 1):
        have = part.stat().st_size if part.exists() else 0
        headers = {"User-Agent": "holdfast"} | ({"Range": f"bytes={have}-"} if have else {})
        headers |= {"If-Range": tag} if have and tag else {}
        opener = urllib.request.build_opener(_SafeRedirects)
        try:
            with opener.open(urllib.request.Request(url, headers=headers), timeout=WAIT_SECONDS) as answer:
                name = _name_of(url, answer)
                _refuse_page(url, answer)
                tag = _tag_of(answer)
                tag_file.write_text(tag, encoding="utf-8")
                is_rest = answer.status == 206
                whole = int(answer.headers.get("Content-Length") or 0) + (have if is_rest else 0)
                with part.open("ab" if is_rest else "wb") as out:
                    size = _copy(answer, out, have if is_rest else 0, whole or None, name, on_progress)
            if whole and size < whole:
                raise http.client.IncompleteRead(b"", whole - size)
            part.rename(home / name)
            tag_file.unlink()
            return home / name
        except urllib.error.HTTPError as error:
            if error.code == 416:  # the part is not a part of this file
                part.unlink(missing_ok=True)
            elif error.code < 500 or attempt == _ATTEMPTS:
                raise _refused(url, f"the server answered {error.code} {error.reason}") from error
        except (urllib.error.URLError, http.client.HTTPException, ConnectionError, TimeoutError) as error:
            if attempt == _ATTEMPTS:
                raise _refused(url, str(getattr(error, "reason", "") or error or type(error).__name__)[:200]) from error
        time.sleep(attempt)
    raise _refused(url, "the server does not send the whole file")


def _copy(answer: IO[bytes], out: IO[bytes], size: int, whole: int | None, name: str, on_progress: Progress) -> int:
    while chunk := answer.read(_CHUNK_BYTES):
        size += len(chunk)
        if size > MOST_BYTES:
            raise RequestError(f"the file is larger than {human_bytes(MOST_BYTES)}", found=name)
        out.write(chunk)
        on_progress(f"downloading {name}", size, whole, "bytes")
    return size


def _tag_of(answer: Any) -> str:
    """What identifies this version of the file; empty if the server does not say it exactly."""
    tag = str(answer.headers.get("ETag") or "")
    return tag if tag.startswith('"') and tag.isascii() else ""


def _name_of(url: str, answer: Any) -> str:
    """The name that the server or the address gives the file, without anything that leads elsewhere."""
    header = Message()
    header["content-disposition"] = answer.headers.get("Content-Disposition") or "attachment"
    found = header.get_filename() or urllib.parse.unquote(urllib.parse.urlsplit(url).path)
    name = re.sub(r"[^\w.-]+", "_", found.replace("\\", "/").rpartition("/")[2]).lstrip(".")
    return name.removesuffix(".part")[-120:] or "data"


def _check_scheme(url: str) -> None:
    parts = urllib.parse.urlsplit(url)
    if parts.scheme.lower() not in ("http", "https") or not parts.hostname:
        raise RequestError(
            f"{url} cannot be downloaded",
            found=f"its scheme is {parts.scheme or 'missing'}; http and https are supported",
            try_next=("download it with its own tool, and give the path of the file",),
            setting="data",
        )


def _refuse_hub_page(url: str) -> None:
    """Refuse the address of a dataset's page, and say which address has the file."""
    found = _HUB_PAGE.match(url)
    if not found or "/resolve/" in url:
        return
    if found["rest"].startswith("blob/"):
        advice = url.replace("/blob/", "/resolve/")
    else:
        advice = f"{url.split('/datasets/')[0]}/datasets/{found['name']}/resolve/main/FILE, with a file from its page"
    raise RequestError(
        f"{url} is the page of a dataset, not a file",
        found="a dataset on the hub may have many files and formats",
        try_next=(advice, "or download the dataset, and give the folder"),
        setting="data",
    )


def _refuse_page(url: str, answer: Any) -> None:
    if answer.headers.get_content_type() in ("text/html", "application/xhtml+xml"):
        raise RequestError(
            f"{url} is a web page, not a data file",
            found=f"the server says it is {answer.headers.get_content_type()}",
            try_next=("use the address of the file itself, which a page often calls 'raw' or 'download'",),
            setting="data",
        )


def _refused(url: str, found: str) -> HoldfastError:
    return RequestError(
        f"{url} cannot be downloaded",
        found=found,
        try_next=("check the address", "download it another way, and give the path of the file"),
        setting="data",
    )
