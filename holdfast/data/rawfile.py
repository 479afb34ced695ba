"""Opens data files, gzipped or not, and reads each through once for its size, fingerprint and encoding.

Every way in which reading a file can fail becomes a RequestError that names the file.
"""

import codecs
import gzip
import hashlib
import io
import re
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from holdfast.core.errors import RequestError, set_to, type_command
from holdfast.core.path_guess import did_you_mean
from holdfast.core.plan import Choice
from holdfast.core.progress import Progress, no_progress
from holdfast.core.text import human_bytes
from holdfast.data.magic import name_of_binary, utf16_by_zeros

HEAD_BYTES = 262_144
LINE_CHARACTERS = 32_000_000  # a longer line is a file without line breaks, or a binary
_CHUNK_BYTES = 1_048_576
_GZIP = b"\x1f\x8b"
_BOMS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
_NOT_IN_CP1252 = b"\x81\x8d\x8f\x90\x9d"
_HIGH = bytes(range(128, 256))
_LETTERS = bytes(byte for byte in range(256) if byte > 127 or chr(byte).isalpha())
# Of a hundred letters of Western European text a few are accented; of Cyrillic, Greek or Chinese bytes most are high.
_WESTERN_SHARE = 0.3
_DAMAGED = re.compile("[\udc80-\udcff]")
_NOT_ASCII = re.compile("[^\x00-\x7f]")


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
    has_endless_line: bool = False


def look_at(path: Path, encoding: str | None = None, on_progress: Progress = no_progress) -> RawFile:
    """Read a file through once, in small pieces."""
    check_is_file(path)
    size = path.stat().st_size if not _is_gzip(path) else None
    digest, census, head, count, zeros = hashlib.sha256(), EncodingCensus(), bytearray(), 0, 0
    line, longest = 0, 0  # bytes since the last end of a line, seen at the ends of chunks
    with open_bytes(path) as file, reading(path):
        while chunk := file.read(_CHUNK_BYTES):
            if len(head) < HEAD_BYTES:
                head += chunk[: HEAD_BYTES - len(head)]
            digest.update(chunk)
            census.feed(chunk)
            count += len(chunk)
            zeros += chunk.count(0)
            line = len(chunk) - end - 1 if (end := chunk.rfind(b"\n")) >= 0 else line + len(chunk)
            longest = max(longest, line)
            on_progress(f"reading {path.name}", count, size, "bytes")
    if not count:
        raise RequestError(f"{path} is empty", found="0 bytes", try_next=("use a file with a header and rows",))
    binary = name_of_binary(bytes(head))
    chosen = (
        Choice(encoding, "as requested") if encoding else census.encoding(path, bytes(head), is_binary=bool(binary))
    )
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
        has_endless_line=longest >= LINE_CHARACTERS // 2,
    )


def fingerprint_of(files: Iterable[tuple[str, RawFile]]) -> str:
    """One fingerprint for the contents of all files and their splits."""
    digest = hashlib.sha256()
    for split, file in files:
        digest.update(f"{split} {file.sha256}\n".encode())
    return digest.hexdigest()


def check_is_file(path: Path) -> None:
    """Refuse a path that is missing, is not a plain file, or may not be read."""
    try:
        if path.is_dir():
            raise RequestError(f"{path} is a folder, not a file")
        if not path.exists():
            raise _missing(path)
        if not path.is_file():
            raise RequestError(
                f"{path} is neither a file nor a folder",
                found="a pipe, socket or device",
                try_next=("save the data to a file",),
            )
        with path.open("rb"):
            pass
    except PermissionError as error:
        raise RequestError(
            f"no permission to read {path}", found=str(error), try_next=(type_command(f"chmod u+r {path}"),)
        ) from error
    except (OSError, ValueError) as error:  # too long a name, a loop of links, a NUL in the name
        raise RequestError(f"{str(path)[:200]!r} cannot be opened", found=str(error)[:300]) from error


def open_bytes(path: Path) -> IO[bytes]:
    """Open a file for reading, decompressing gzip."""
    if _is_gzip(path):
        return io.BufferedReader(gzip.open(path, "rb"), _CHUNK_BYTES)
    return path.open("rb")


def open_text(raw: RawFile) -> IO[str]:
    """Open a file as text in its encoding; line ends are kept, damaged bytes become surrogates."""
    keeps_damage = raw.encoding.value in ("utf-8", "utf-8-sig")
    return io.TextIOWrapper(
        open_bytes(raw.path),
        encoding=raw.encoding.value,
        errors="surrogateescape" if keeps_damage else "replace",
        newline="",
    )


def text_lines(raw: RawFile, file: IO[str]) -> Iterator[str]:
    """Read lines with their ends; refuse one that would not fit in memory."""
    return _bounded_lines(raw.path, file) if raw.has_endless_line else iter(file)


def _bounded_lines(path: Path, file: IO[str]) -> Iterator[str]:
    number = 0
    while line := file.readline(LINE_CHARACTERS):
        number += 1
        if len(line) == LINE_CHARACTERS:
            raise RequestError(
                f"{path.name}, line {number} is longer than {LINE_CHARACTERS:,} characters",
                found=repr(line[:60]),
                try_next=("put each row on its own line",),
            )
        yield line


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn a failure while reading into a RequestError that names the file."""
    try:
        yield
    except EOFError as error:
        raise RequestError(
            f"{path} is truncated: its gzip data ends early",
            found=f"{human_bytes(path.stat().st_size)} on disk; {error}",
            try_next=("copy or download the file again",),
        ) from error
    except (gzip.BadGzipFile, zlib.error) as error:
        raise RequestError(
            f"{path} is damaged: its gzip data cannot be decompressed",
            found=str(error),
            try_next=("copy or download the file again",),
        ) from error
    except OSError as error:
        raise RequestError(f"{path} cannot be read", found=str(error)) from error


def _is_gzip(path: Path) -> bool:
    with reading(path), path.open("rb") as file:
        return file.read(2) == _GZIP


def _missing(path: Path) -> RequestError:
    found = "" if path.parent.is_dir() else f"the folder {path.parent} does not exist"
    return RequestError(f"file not found: {path}", found=found, try_next=did_you_mean(path))


class EncodingCensus:
    """Finds a text file's encoding from a count of all its bytes, fed piece by piece.

    Other encodings almost never look like UTF-8 by chance, so UTF-8 is chosen whenever most of the non-ASCII text fits
    it; the few rows that do not are bad rows. Otherwise it is Windows-1252, which holds Latin-1's letters. Other
    encodings must be named by the user.
    """

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("surrogateescape")
        self._pending = False
        self.damaged = 0  # bytes that are not UTF-8
        self._fitting = 0  # non-ASCII characters that are
        self._undefined = 0
        self._high = 0
        self._letters = 0

    def feed(self, chunk: bytes) -> None:
        """Count one more piece of the file."""
        if chunk.isascii() and not self._pending:
            return
        text = self._decoder.decode(chunk)
        self._pending = bool(self._decoder.getstate()[0])
        damaged = len(_DAMAGED.findall(text))
        self.damaged += damaged
        self._fitting += len(_NOT_ASCII.findall(text)) - damaged
        if damaged:
            self._undefined += sum(chunk.count(byte) for byte in _NOT_IN_CP1252)
            self._high += len(chunk) - len(chunk.translate(None, _HIGH))
            self._letters += len(chunk) - len(chunk.translate(None, _LETTERS))

    def encoding(self, path: Path, head: bytes, *, is_binary: bool) -> Choice[str]:
        """Choose the encoding once everything is counted."""
        self.damaged += len(_DAMAGED.findall(self._decoder.decode(b"", final=True)))
        if is_binary:
            return Choice("utf-8", "not a text file")
        for bom, name in _BOMS:
            if head.startswith(bom):
                return Choice(name, "the file starts with its byte order mark")
        if name := utf16_by_zeros(head):
            return Choice(name, "every other byte is zero")
        if not self.damaged:
            return Choice("utf-8", "every byte is valid")
        if self._fitting >= self.damaged:
            return Choice("utf-8", f"{self._fitting:,} characters are valid, {self.damaged:,} bytes are not")
        if self._high > _WESTERN_SHARE * self._letters:
            raise RequestError(
                f"the encoding of {path.name} is unknown",
                found=f"not UTF-8, and {self._high / self._letters:.0%} of its letters are not ASCII",
                try_next=(set_to("encoding", note="such as cp1251, gb18030, shift_jis, big5, euc_kr, iso8859_7"),),
                setting="encoding",
            )
        if self._undefined:
            return Choice("latin-1", "not UTF-8, and some bytes are not in Windows-1252")
        return Choice("cp1252", "not UTF-8; every byte is in Windows-1252")
