"""Lists what a macOS file takes from an OpenMP runtime and what a runtime offers: can one copy serve for another?

Unlike the scan this walks whole symbol tables; it is for the few small files that a link would touch.
"""

import re
import struct
from collections.abc import Iterator
from pathlib import Path

from holdfast.machine.native.binary import Corrupt, Window
from holdfast.machine.native.macho import ENTRY_BYTES, Image, binding_of, read_image
from holdfast.machine.native.runtimes import openmp_kind

_MAX_STRINGS_BYTES = 256 << 20
_OPENMP_NAME = re.compile(rb"_(?:__kmpc_|kmpc_|kmp_|omp_|ompt_|GOMP_|__kmp)")
_BY_NAME_ALONE = 0xFE  # looked up in all libraries at run time


def openmp_imports(path: str, arch: str) -> frozenset[str]:
    """The symbols that a file takes from an OpenMP runtime. Raises `Corrupt` or OSError when they cannot be told."""
    with Path(path).open("rb", buffering=0) as file:
        image = read_image(Window(file, 0, Path(path).stat().st_size), arch)
        runtimes = {index + 1 for index, name in enumerate(image.needed) if openmp_kind(name)}
        return frozenset(
            name.decode("utf-8", "backslashreplace")
            for name, entry in _symbols(image)
            if binding_of(entry) == "imported"
            and (entry[7] in runtimes or (entry[7] in (0, _BY_NAME_ALONE) and _OPENMP_NAME.match(name)))
        )


def exported_symbols(path: str, arch: str) -> frozenset[str]:
    """The symbols that a file offers to others. Raises `Corrupt` or OSError when they cannot be told."""
    with Path(path).open("rb", buffering=0) as file:
        image = read_image(Window(file, 0, Path(path).stat().st_size), arch)
        return frozenset(
            name.decode("utf-8", "backslashreplace")
            for name, entry in _symbols(image)
            if binding_of(entry) in ("strong", "weak")
        )


def _symbols(image: Image) -> Iterator[tuple[bytes, bytes]]:
    table = image.symbols
    if table is None:
        raise Corrupt("the file has no symbol table")
    if table.strings_size > _MAX_STRINGS_BYTES:
        raise Corrupt(f"a string table of {table.strings_size} bytes is too large to check")
    strings = image.window.read(table.strings_offset, table.strings_size)
    for _, chunk in image.window.chunks(table.offset, table.size, step=ENTRY_BYTES):
        for at in range(0, len(chunk) - ENTRY_BYTES + 1, ENTRY_BYTES):
            (place,) = struct.unpack_from("<I", chunk, at)
            end = strings.find(b"\0", place)
            if 0 < place < end:
                yield strings[place:end], chunk[at : at + ENTRY_BYTES]
