"""Opens a data file as bytes, gzipped or not, and looks at all of it once: size, fingerprint, encoding.

Every way in which a file can fail to be read becomes a RequestError that names it.
"""

import gzip
import hashlib
import io
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from holdfast.core.errors import RequestError
from holdfast.core.misspelt import did_you_mean
from holdfast.core.plan import Choice
from holdfast.core.text import human_bytes
from holdfast.data.encoding import EncodingCensus
from holdfast.data.magic import name_of_binary
from holdfast.data.request import Progress, no_progress

HEAD_BYTES = 262_144
LINE_CHARACTERS = 32_000_000  # a longer line is a file without line breaks, or a binary
_CHUNK_BYTES = 1_048_576
_GZIP = b"\x1f\x8b"


@dataclass(frozen=True, slots=True, kw_only=True)
class RawFile:
    """A file that was read through once."""

    path: Path
    size_bytes: int  # unpacked
    sha256: str  # of the unpacked content
    is_gzip: bool
    head: bytes
    binary: str = ""  # what kind of binary it is; empty for text
    encoding: Choice[str]
    damaged: int = 0  # bytes that do not belong to the encoding
    zeros: int = 0  # NUL bytes


def look_at(path: Path, encoding: str | None = None, on_progress: Progress = no_progress) -> RawFile:
    """Read a file through once, in small pieces."""
    check_is_file(path)
    size = path.stat().st_size if not _is_gzip(path) else None
    digest, census, head, count, zeros = hashlib.sha256(), EncodingCensus(), bytearray(), 0, 0
    with open_bytes(path) as file, reading(path):
        while chunk := file.read(_CHUNK_BYTES):
            if len(head) < HEAD_BYTES:
                head += chunk[: HEAD_BYTES - len(head)]
            digest.update(chunk)
            census.feed(chunk)
            count += len(chunk)
            zeros += chunk.count(0)
            on_progress(f"reading {path.name}", count, size)
    if not count:
        raise RequestError(f"{path} is empty", seen="0 bytes", try_next=("give a file with a header and rows",))
    binary = name_of_binary(bytes(head))
    chosen = Choice(encoding, "as asked") if encoding else census.encoding(path, bytes(head), is_binary=bool(binary))
    return RawFile(
        path=path,
        size_bytes=count,
        sha256=digest.hexdigest(),
        is_gzip=_is_gzip(path),
        head=bytes(head),
        binary=binary,
        encoding=chosen,
        damaged=census.damaged if chosen.value in ("utf-8", "utf-8-sig") else 0,
        zeros=zeros,
    )


def check_is_file(path: Path) -> None:
    """Refuse what is missing, no plain file, or not ours to read."""
    try:
        if path.is_dir():
            raise RequestError(f"{path} is a folder, not a file")
        if not path.exists():
            raise _missing(path)
        if not path.is_file():
            raise RequestError(
                f"{path} is neither a file nor a folder",
                seen="a pipe, socket or device",
                try_next=("save the data to a file first",),
            )
        with path.open("rb"):
            pass
    except PermissionError as error:
        raise RequestError(
            f"{path} may not be read by this user", seen=str(error), try_next=(f"chmod u+r {path}",)
        ) from error
    except (OSError, ValueError) as error:  # a name too long, a loop of links, a NUL in the name
        raise RequestError(f"{str(path)[:200]!r} cannot be opened", seen=str(error)[:300]) from error


def open_bytes(path: Path) -> IO[bytes]:
    """Open a file for reading, unpacking gzip on the way."""
    if _is_gzip(path):
        return io.BufferedReader(gzip.open(path, "rb"), _CHUNK_BYTES)
    return path.open("rb")


def open_text(raw: RawFile) -> IO[str]:
    """Open a file as text in its encoding; line ends stay as they are, damaged bytes become surrogates."""
    keeps_damage = raw.encoding.value in ("utf-8", "utf-8-sig")
    return io.TextIOWrapper(
        open_bytes(raw.path),
        encoding=raw.encoding.value,
        errors="surrogateescape" if keeps_damage else "replace",
        newline="",
    )


def text_lines(path: Path, file: IO[str]) -> Iterator[str]:
    """Read lines, each with its end; refuse one that would not fit in memory."""
    number = 0
    while line := file.readline(LINE_CHARACTERS):
        number += 1
        if len(line) == LINE_CHARACTERS:
            raise RequestError(
                f"{path.name}, line {number} is longer than {LINE_CHARACTERS:,} characters",
                seen=repr(line[:60]),
                try_next=("put each row on a line of its own",),
            )
        yield line


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn what goes wrong while reading into a RequestError that names the file."""
    try:
        yield
    except EOFError as error:
        raise RequestError(
            f"{path} is cut off: the gzip data ends too early",
            seen=f"{human_bytes(path.stat().st_size)} on disk; {error}",
            try_next=("copy or download the file again",),
        ) from error
    except (gzip.BadGzipFile, zlib.error) as error:
        raise RequestError(
            f"{path} is damaged: its gzip data cannot be unpacked",
            seen=str(error),
            try_next=("copy or download the file again",),
        ) from error
    except OSError as error:
        raise RequestError(f"{path} cannot be read", seen=str(error)) from error


def _is_gzip(path: Path) -> bool:
    with reading(path), path.open("rb") as file:
        return file.read(2) == _GZIP


def _missing(path: Path) -> RequestError:
    seen = "" if path.parent.is_dir() else f"the folder {path.parent} does not exist either"
    return RequestError(f"there is no file {path}", seen=seen, try_next=did_you_mean(path))
