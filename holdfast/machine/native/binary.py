"""The facts about one native file, and bounded reads for the three readers.

Files are read in pieces instead of mapped: memory stays small whatever a header claims, and a package that is replaced
during the read cannot crash the process with a bus error.
"""

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Literal

Binding = Literal["strong", "weak", "local", "imported"]

_CHUNK_BYTES = 1 << 20  # stays in the processor's cache while names are searched


@dataclass(frozen=True, slots=True, kw_only=True)
class NativeFile:
    """The parts of a library or extension module that a loader reads."""

    path: str
    format: Literal["mach-o", "elf", "pe"]
    os: str  # "macos" | "linux" | "windows"
    arch: str  # "arm64" | "x86_64" | "aarch64" | ...
    name: str = ""  # the name in the file: install name, soname, or DLL name
    needed: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()  # those of `needed` that may be missing
    rpaths: tuple[str, ...] = ()
    markers: Mapping[str, Binding] = field(default_factory=dict)
    built_for: str = ""  # oldest system it was built for, on macOS

    @property
    def leaf(self) -> str:
        """The file's name without its folder."""
        return self.path.replace("\\", "/").rsplit("/", 1)[-1]


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A file with a native name that could not be read, with the reason."""

    path: str
    reason: str


class Corrupt(Exception):
    """A header that contradicts the file. Never leaves this package."""


class Window:
    """A file, or one slice of a fat file, with bounds checks on every read."""

    def __init__(self, file: BinaryIO, start: int, size: int):
        self._file, self._start, self.size = file, start, size

    def part(self, offset: int, size: int) -> "Window":
        """A window on a piece of this one."""
        self._check(offset, size)
        return Window(self._file, self._start + offset, size)

    def read(self, offset: int, size: int) -> bytes:
        """The bytes at an offset, all of them."""
        self._check(offset, size)
        self._file.seek(self._start + offset)
        data = self._file.read(size)
        if len(data) != size:
            raise Corrupt(f"the file ends {size - len(data)} bytes early")
        return data

    def unpack(self, form: str, offset: int) -> tuple[int, ...]:
        """The numbers at an offset, in `struct`'s notation."""
        numbers: tuple[int, ...] = struct.unpack(form, self.read(offset, struct.calcsize(form)))
        return numbers

    def text(self, offset: int, limit: int = 1 << 16) -> str:
        """The zero-terminated string at an offset."""
        if offset >= self.size:
            raise Corrupt(f"a name at {offset}, beyond the end at {self.size}")
        raw, end, _ = self.read(offset, min(limit, self.size - offset)).partition(b"\0")
        if not end:
            raise Corrupt("an unterminated name")
        return plain_text(raw)

    def chunks(self, offset: int, size: int, step: int = 1, overlap: int = 0) -> Iterator[tuple[int, bytes]]:
        """Pieces of a range with their offsets, each beginning on a multiple of `step`; neighbors share `overlap`."""
        self._check(offset, size)
        stride = max(_CHUNK_BYTES // step, 1) * step
        for begin in range(0, size, stride):
            yield offset + begin, self.read(offset + begin, min(stride + overlap, size - begin))

    def _check(self, offset: int, size: int) -> None:
        if offset < 0 or size < 0 or offset + size > self.size:
            raise Corrupt(f"expected {size} bytes at {offset}, but the file has {self.size}")


def is_file(path: str) -> bool:
    """Whether a path is a file; names from a hostile file may be longer than any system allows."""
    try:
        return Path(path).is_file()
    except (OSError, ValueError):
        return False


def plain_text(raw: bytes) -> str:
    """Decode a name from a file so that it is safe to print."""
    return printable(raw.decode("utf-8", "backslashreplace"))


def printable(text: str) -> str:
    """Write control characters and broken ones as escapes."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)
