"""Reads Windows libraries (64-bit PE): the DLL's own name, the DLLs it imports, and exported marker functions."""

from collections.abc import Iterator
from dataclasses import dataclass

from holdfast.machine.native.binary import Binding, Corrupt, NativeFile, Window
from holdfast.machine.native.symbols import MARKERS

MAGIC = b"MZ"

_ARCHES = {0x8664: "x86_64", 0xAA64: "arm64"}
_PE32, _PE32_PLUS = 0x10B, 0x20B
_EXPORT, _IMPORT, _DELAY = 0, 1, 13
_MAX_LIBRARIES = 4096
_MAX_SECTIONS = 1024  # Windows itself stops at 96
# Limits on what a broken or hostile file may claim: without them, one header of 40 bytes could ask for gigabytes of
# reading. No real library comes near them.


@dataclass(frozen=True, slots=True)
class _Section:
    address: int
    size: int
    offset: int


class _Layout:
    """Turns addresses of the loaded image into offsets of the file."""

    def __init__(self, window: Window, sections: tuple[_Section, ...]):
        self.window, self._sections = window, sections

    def offset(self, address: int) -> int:
        for section in self._sections:
            if section.address <= address < section.address + section.size:
                return section.offset + address - section.address
        raise Corrupt(f"address {address:#x} is in no section")

    def text(self, address: int) -> str:
        return self.window.text(self.offset(address), limit=8192)


def read_pe(window: Window, path: str) -> NativeFile:
    """Read one file."""
    (header,) = window.unpack("<I", 60)
    if window.read(header, 4) != b"PE\0\0":
        raise Corrupt("a DOS program, not a Windows library")
    machine, count = window.unpack("<HH", header + 4)
    (optional_size,) = window.unpack("<H", header + 20)
    optional = header + 24
    (magic,) = window.unpack("<H", optional)
    if magic == _PE32:
        raise Corrupt("a 32-bit Windows library, which a 64-bit Python cannot load")
    if magic != _PE32_PLUS:
        raise Corrupt("a Windows file of an unknown kind")
    layout = _Layout(window, tuple(_sections(window, optional + optional_size, count)))
    (tables,) = window.unpack("<I", optional + 108)
    directory = {
        which: window.unpack("<II", optional + 112 + 8 * which)[0] if which < tables else 0
        for which in (_EXPORT, _IMPORT, _DELAY)
    }
    imports = tuple(_libraries(layout, directory[_IMPORT], step=20, name_at=12))
    delayed = tuple(_libraries(layout, directory[_DELAY], step=32, name_at=4))
    name, markers = _exports(layout, directory[_EXPORT])
    return NativeFile(
        path=path,
        format="pe",
        os="windows",
        arch=_ARCHES.get(machine, f"machine {machine:#x}"),
        name=name,
        needed=imports + delayed,
        optional=delayed,
        markers=markers,
    )


def _sections(window: Window, at: int, count: int) -> Iterator[_Section]:
    if count > _MAX_SECTIONS:
        raise Corrupt(f"{count} sections are not plausible")
    for index in range(count):
        virtual_size, address, raw_size, offset = window.unpack("<IIII", at + index * 40 + 8)
        yield _Section(address, min(raw_size, virtual_size or raw_size), offset)


def _libraries(layout: _Layout, table: int, step: int, name_at: int) -> Iterator[str]:
    if not table:
        return
    at = layout.offset(table)
    for index in range(_MAX_LIBRARIES):
        entry = layout.window.read(at + index * step, step)
        name = int.from_bytes(entry[name_at : name_at + 4], "little")
        if not name:
            return
        yield layout.text(name)
    raise Corrupt(f"more than {_MAX_LIBRARIES} imported libraries are not plausible")


def _exports(layout: _Layout, table: int) -> tuple[str, dict[str, Binding]]:
    if not table:
        return "", {}
    (name, _, _, count, _, names) = layout.window.unpack("<IIIIII", layout.offset(table) + 12)
    if not count:
        return layout.text(name), {}
    pointers = layout.window.part(layout.offset(names), 4 * count)
    markers: dict[str, Binding] = {
        key: "strong"
        for key, symbols in MARKERS.items()
        if any(_exports_name(layout, pointers, one) for one in symbols)
    }
    return layout.text(name), markers


def _exports_name(layout: _Layout, pointers: Window, wanted: str) -> bool:
    """Search the export names, which Windows itself requires to be sorted."""
    low, high = 0, pointers.size // 4
    while low < high:
        middle = (low + high) // 2
        name = layout.text(pointers.unpack("<I", 4 * middle)[0])
        if name == wanted:
            return True
        low, high = (middle + 1, high) if name < wanted else (low, middle)
    return False
