"""The object store that all machines share: HOLDFAST_STORE, S3 or any other address that fsspec supports.

`stored_folder.py` decides what is stored in it.
"""

import contextlib
import functools
import os
import re
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from django.conf import settings

from holdfast.core.errors import HoldfastError, MachineError, RequestError
from holdfast.core.redact import Redactor

_PASSWORD = re.compile(r"(?<=://)[^:]*:(.*)@")  # up to the last @: a password may contain one, and a / too
_DOWN = ("EndpointConnectionError", "ConnectTimeoutError", "ReadTimeoutError", "ConnectionClosedError", "ProxyError")
_PACKAGES = {"s3": "pip install 'holdfast[s3]'", "s3a": "pip install 'holdfast[s3]'"}
_KEYS = (
    "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, with permission to read, write and delete there",
    "AWS_ENDPOINT_URL=https://HOST, for a server other than Amazon S3",
)


class StoreError(MachineError):
    """The store did not do what was requested."""

    is_down = False  # it did not respond at all


class ObjectStore:
    """One address, through fsspec."""

    def __init__(self, url: str):
        self.shown, hidden = _PASSWORD.sub("...@", url), _PASSWORD.search(url)
        self._redact = Redactor({**os.environ, "STORE_PASSWORD": hidden[1] if hidden else ""})
        kind = url.partition("://")[0]
        with self.explained():
            import fsspec

            # No listing is cached, since others write too; timeouts are short, since we retry ourselves.
            calm = {"config_kwargs": {"connect_timeout": 10, "read_timeout": 60, "retries": {"max_attempts": 2}}}
            options: dict[str, Any] = calm if kind in _PACKAGES else {}
            self.files, self.root = fsspec.url_to_fs(url, use_listings_cache=False, skip_instance_cache=True, **options)
            self._has_folders = kind not in _PACKAGES

    def write(self, path: str, content: bytes | Path) -> None:
        """Write one file."""
        if self._has_folders:
            self.files.makedirs(path.rpartition("/")[0], exist_ok=True)
        if isinstance(content, Path):
            self.files.put_file(str(content), path)
        else:
            self.files.pipe_file(path, content)

    def names(self, path: str) -> dict[str, int]:
        """The files directly in a folder, with their sizes."""
        self.files.invalidate_cache()
        with contextlib.suppress(FileNotFoundError):
            found = self.files.ls(path, detail=True)
            return {str(one["name"]).rstrip("/").rpartition("/")[2]: int(one.get("size") or 0) for one in found}
        return {}

    def copy(self, path: str, target: str) -> None:
        """Copy one file inside the store."""
        if self._has_folders:
            self.files.makedirs(target.rpartition("/")[0], exist_ok=True)
        self.files.cp_file(path, target)

    def drop(self, path: str) -> None:
        """Remove a file or a folder."""
        with contextlib.suppress(FileNotFoundError):
            self.files.rm(path, recursive=True)

    def check(self) -> None:
        """Write, read and delete a small file; the error says what failed."""
        path, content = f"{self.root}/check-{uuid.uuid4().hex}", b"holdfast"
        with self.explained():
            self.write(path, content)
            if self.files.cat_file(path) != content:
                raise OSError("a file reads back with other content than was written")
            self.drop(path)

    @contextlib.contextmanager
    def explained(self) -> Iterator[None]:
        """Turn whatever the store's package raises into a StoreError."""
        try:
            yield
        except HoldfastError:
            raise
        except Exception as error:  # each of these packages has its own errors
            raise self._explained(error) from error

    def _explained(self, error: Exception) -> StoreError:
        kind = self.shown.partition("://")[0]
        if isinstance(error, ImportError):
            advice: tuple[str, ...] = (_PACKAGES.get(kind, f"install the package that fsspec needs for {kind}://"),)
        elif kind in _PACKAGES and not isinstance(error, (FileNotFoundError, ValueError)):
            advice = _KEYS
        elif kind in _PACKAGES or isinstance(error, ValueError):
            advice = ("HOLDFAST_STORE=s3://BUCKET/FOLDER, with an existing bucket",)
        else:
            advice = ("set HOLDFAST_STORE to a place that you can write to",)
        seen = self._redact(" ".join(str(error).split()))[:300] or type(error).__name__
        found = StoreError(f"HOLDFAST_STORE={self.shown} does not work", found=seen, try_next=advice)
        found.is_down = isinstance(error, (ConnectionError, TimeoutError)) or type(error).__name__ in _DOWN
        return found


def open_store() -> ObjectStore | None:
    """The store of this service; None without HOLDFAST_STORE."""
    return _open(settings.STORE) if settings.STORE else None


def require_store(say: Any) -> None:
    """Refuse an address or a key that does not work; a store that is away is reported and tried again later."""
    if not settings.STORE:
        return
    if "://" not in settings.STORE:
        raise RequestError(
            f"HOLDFAST_STORE={settings.STORE} is not an address",
            found="it has no ://",
            try_next=("HOLDFAST_STORE=s3://BUCKET/FOLDER", f"HOLDFAST_STORE=file://{Path(settings.STORE).absolute()}"),
        )
    store = _open(settings.STORE)
    try:
        store.check()
    except StoreError as error:
        if not error.is_down:
            raise
        say(f"[!]  the store {store.shown} does not respond; trying again: {error.found}")


@functools.lru_cache(maxsize=2)
def _open(url: str) -> ObjectStore:
    return ObjectStore(url)
