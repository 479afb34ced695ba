"""Reads Linux libraries (ELF): soname, needed libraries, search paths, and marker symbols."""

from collections.abc import Iterator
from dataclasses import dataclass

from holdfast.machine.native.binary import Binding, Corrupt, NativeFile, Window
from holdfast.machine.native.symbols import SymbolTable, find_markers

MAGIC = b"\x7fELF"

_ARCHES = {62: "x86_64", 183: "aarch64", 243: "riscv64", 21: "ppc64le", 22: "s390x", 258: "loongarch64"}
_LOAD, _DYNAMIC = 1, 2
_NEEDED, _STRTAB, _SYMTAB, _STRSZ, _SONAME, _RPATH, _RUNPATH = 1, 5, 6, 10, 14, 15, 29
_SECTION_DYNSYM = 11
_MAX_DYNAMIC_BYTES = 1 << 20
_MAX_NEEDED = 4096
_ENTRY_BYTES = 24


@dataclass(frozen=True, slots=True)
class _Segment:
    kind: int
    offset: int
    address: int
    size: int


def read_elf(window: Window, path: str) -> NativeFile:
    """Read one file. A debug file has an empty dynamic segment and needs nothing."""
    width, order_byte = window.read(4, 2)
    if width != 2:
        raise Corrupt("a 32-bit ELF file, which a 64-bit Python cannot load")
    order = ">" if order_byte == 2 else "<"
    (machine,) = window.unpack(order + "H", 18)
    segments = tuple(_segments(window, order))
    entries = tuple(_dynamic(window, order, segments))
    values = dict(entries)
    needed: tuple[str, ...] = ()
    rpaths: tuple[str, ...] = ()
    markers: dict[str, Binding] = {}
    name = ""
    if _STRTAB in values and (strings := _place(segments, values[_STRTAB])) is not None:
        size = values.get(_STRSZ, 0)
        texts = window.part(strings, size)
        needed = tuple(texts.text(value) for tag, value in entries if tag == _NEEDED)
        name = texts.text(values[_SONAME]) if _SONAME in values else ""
        rpaths = _rpaths(texts, values)
        table = _symbols(window, order, segments, values, strings, size)
        markers = find_markers(window, table, _binding) if table else {}
    return NativeFile(
        path=path,
        format="elf",
        os="linux",
        arch=_ARCHES.get(machine, f"machine {machine}"),
        name=name,
        needed=needed,
        rpaths=rpaths,
        markers=markers,
    )


def _segments(window: Window, order: str) -> Iterator[_Segment]:
    (at,) = window.unpack(order + "Q", 32)
    size, count = window.unpack(order + "HH", 54)
    if count and size < 56:
        raise Corrupt(f"program headers of {size} bytes")
    for index in range(count):
        kind, _, offset, address, _, length = window.unpack(order + "IIQQQQ", at + index * size)
        if kind in (_LOAD, _DYNAMIC):
            yield _Segment(kind, offset, address, length)


def _dynamic(window: Window, order: str, segments: tuple[_Segment, ...]) -> Iterator[tuple[int, int]]:
    dynamic = [segment for segment in segments if segment.kind == _DYNAMIC]
    if not dynamic:
        return
    segment = dynamic[-1]  # usually one; of several, the system's loader uses the last
    if segment.size > _MAX_DYNAMIC_BYTES:
        raise Corrupt(f"a dynamic segment of {segment.size} bytes is not plausible")
    needed = 0
    for at in range(0, segment.size - 15, 16):
        tag, value = window.unpack(order + "QQ", segment.offset + at)
        if tag == 0:
            return
        needed += tag == _NEEDED
        if needed > _MAX_NEEDED:
            raise Corrupt(f"more than {_MAX_NEEDED} needed libraries are not plausible")
        yield tag, value


def _place(segments: tuple[_Segment, ...], address: int) -> int | None:
    """The file offset of an address; None in a debug file, whose segments are empty."""
    for segment in segments:
        if segment.kind == _LOAD and segment.address <= address < segment.address + segment.size:
            return segment.offset + address - segment.address
    return None


def _rpaths(texts: Window, values: dict[int, int]) -> tuple[str, ...]:
    tag = _RUNPATH if _RUNPATH in values else _RPATH  # a RUNPATH makes the loader ignore RPATH
    return tuple(path for path in texts.text(values[tag]).split(":") if path) if tag in values else ()


def _symbols(
    window: Window,
    order: str,
    segments: tuple[_Segment, ...],
    values: dict[int, int],
    strings: int,
    strings_size: int,
) -> SymbolTable | None:
    begin = _place(segments, values.get(_SYMTAB, -1))
    if begin is None:
        return None
    size = _section_size(window, order, begin)
    if size is None:  # no section headers: the strings usually follow the symbols
        size = (strings if strings > begin else window.size) - begin
    return SymbolTable(begin, size, _ENTRY_BYTES, strings, strings_size, prefix=b"", order=order)


def _section_size(window: Window, order: str, offset: int) -> int | None:
    (at,) = window.unpack(order + "Q", 40)
    size, count = window.unpack(order + "HH", 58)
    if not at or size < 64 or at + size * count > window.size:
        return None
    for index in range(count):
        kind, _, _, place, length = window.unpack(order + "IQQQQ", at + index * size + 4)
        if kind == _SECTION_DYNSYM and place == offset and place + length <= window.size:
            return length
    return None


def _binding(entry: bytes) -> Binding | None:
    info, other, section = entry[4], entry[5], entry[6:8]
    if section == b"\0\0":
        return "imported"
    if other & 3 in (1, 2) or info >> 4 == 0:
        return "local"
    return "weak" if info >> 4 == 2 else "strong"
