"""Looks up a few telling symbols in a file of any size, without walking its symbol table.

The name is searched in the strings, then its offset in the table: 0.5 s for TensorFlow's 1.3 million symbols.
"""

import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache

from holdfast.machine.native.binary import Binding, Corrupt, Window

# One name each tells a fact about a file. Mach-O writes them with one more leading underscore.
MARKERS: Mapping[str, tuple[str, ...]] = {
    "kmp": ("__kmpc_fork_call",),
    "gomp": ("GOMP_parallel",),
    "kmp-suspend": ("_Z16__kmp_suspend_64ILb0ELb1EEviP11kmp_flag_64IXT_EXT0_EE",),
    "protobuf-shutdown": ("_ZZN6google8protobuf8internal12ShutdownData3getEvE4data",),
    "protobuf-21": ("_ZN6google8protobuf8internal10LogMessageC1ENS0_8LogLevelEPKci",),
    "openblas": tuple(
        f"{before}openblas_get_num_threads{after}" for before in ("", "scipy_") for after in ("", "64_", "_64_")
    ),
    "mkl": ("mkl_serv_set_num_threads",),
}
_STEMS = {"openblas": b"openblas_get_num_threads"}  # one search instead of six

MAX_TABLE_BYTES = 1 << 30  # the largest string table met, TensorFlow's, has 250 MB
_MAX_PLACES = 256
_MAX_MISSES = 2000
_STRENGTH: tuple[Binding, ...] = ("imported", "local", "weak", "strong")


@dataclass(frozen=True, slots=True)
class SymbolTable:
    """Where a file keeps its symbols: entries of a fixed size that begin with an offset into the strings."""

    offset: int
    size: int
    entry_bytes: int
    strings_offset: int
    strings_size: int
    prefix: bytes  # b"_" in Mach-O
    order: str  # "<" or ">"


def find_markers(
    window: Window, table: SymbolTable, binding_of: Callable[[bytes], Binding | None]
) -> dict[str, Binding]:
    """Look the marker names up without walking the symbols: first the strings, then their offsets in the table."""
    places = _string_places(window, table, _wanted(table.prefix))
    found: dict[str, Binding] = {}
    for key, entry in _entries_at(window, table, places):
        binding = binding_of(entry)
        if binding and (key not in found or _STRENGTH.index(binding) > _STRENGTH.index(found[key])):
            found[key] = binding
    return found


@lru_cache
def _wanted(prefix: bytes) -> tuple[tuple[str, bytes, tuple[bytes, ...]], ...]:
    wanted = []
    for key, names in MARKERS.items():
        whole = tuple(prefix + name.encode() + b"\0" for name in names)
        wanted.append((key, _STEMS.get(key, whole[0]), whole))
    return tuple(wanted)


def _string_places(
    window: Window, table: SymbolTable, wanted: tuple[tuple[str, bytes, tuple[bytes, ...]], ...]
) -> dict[int, str]:
    """String offsets where a marker's name stands; it may be the tail of a longer name, which the table will tell."""
    if table.strings_size > MAX_TABLE_BYTES or table.size > MAX_TABLE_BYTES:
        raise Corrupt("a symbol table of more than 1 GB is not believable")
    places: dict[int, str] = {}
    overlap = max(len(name) for _, _, names in wanted for name in names)
    for begin, chunk in window.chunks(table.strings_offset, table.strings_size, overlap=overlap):
        for key, stem, names in wanted:
            if chunk.find(stem) < 0:
                continue
            for name in names:
                at = chunk.find(name)
                while at >= 0 and len(places) < _MAX_PLACES:
                    places[begin + at - table.strings_offset] = key
                    at = chunk.find(name, at + 1)
    places.pop(0, None)  # offset 0 means "no name"
    return places


def _entries_at(window: Window, table: SymbolTable, places: Mapping[int, str]) -> Iterator[tuple[str, bytes]]:
    if not places:
        return
    size = table.entry_bytes
    patterns = {struct.pack(table.order + "I", place): key for place, key in places.items() if place < 1 << 32}
    whole = table.size - table.size % size
    for _, chunk in window.chunks(table.offset, whole, step=size):
        for pattern, key in patterns.items():
            for at in _aligned(chunk, pattern, size):
                yield key, chunk[at : at + size]


def _aligned(chunk: bytes, pattern: bytes, size: int) -> Iterator[int]:
    """Positions of a pattern on entry boundaries; an offset that also occurs everywhere else costs one plain walk."""
    misses, at = 0, chunk.find(pattern)
    while at >= 0 and misses < _MAX_MISSES:
        if at % size:
            misses += 1
        else:
            yield at
        at = chunk.find(pattern, at + 1)
    if at >= 0:
        start = -(-at // size) * size
        for place in range(start, len(chunk), size):
            if chunk[place : place + 4] == pattern:
                yield place
