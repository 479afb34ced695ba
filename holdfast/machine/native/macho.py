"""Reads macOS libraries (Mach-O, thin or fat): names, needed libraries, and marker symbols."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from holdfast.machine.native.binary import Binding, Corrupt, NativeFile, Window, plain_text
from holdfast.machine.native.symbols import SymbolTable, find_markers

MAGIC = b"\xcf\xfa\xed\xfe"
MAGICS_32_BIT = (b"\xce\xfa\xed\xfe", b"\xfe\xed\xfa\xce")
FAT_MAGICS = (b"\xca\xfe\xba\xbe", b"\xca\xfe\xba\xbf")

_ARCHES = {0x0100000C: "arm64", 0x01000007: "x86_64"}
_ARM64E = 2
_SYSTEMS = {1: "macos", 2: "ios", 3: "tvos", 7: "ios"}
_DEBUG_FILE = 10  # a dSYM repeats the symbols of the real file and is never loaded

_ID, _RPATH, _SYMTAB, _BUILD_VERSION, _VERSION_MIN = 0xD, 0x8000001C, 0x2, 0x32, 0x24
_LOAD, _LOAD_WEAK, _REEXPORT, _LOAD_LAZY, _LOAD_UPWARD = 0xC, 0x80000018, 0x8000001F, 0x20, 0x80000023
_REFERENCES = (_LOAD, _LOAD_WEAK, _REEXPORT, _LOAD_LAZY, _LOAD_UPWARD)
_MAX_COMMANDS_BYTES = 4 << 20
_MAX_NEEDED = 4096
_MAX_SLICES = 64  # Java class files share the fat magic; read as a count, their version is larger
ENTRY_BYTES = 16


@dataclass(slots=True)
class Image:
    """The load commands of one slice."""

    window: Window
    arch: str
    is_debug: bool
    os: str = "macos"
    name: str = ""
    needed: list[str] = field(default_factory=list)
    optional: list[str] = field(default_factory=list)
    rpaths: list[str] = field(default_factory=list)
    built_for: str = ""
    symbols: SymbolTable | None = None


def read_macho(window: Window, path: str, prefer: str = "arm64") -> NativeFile:
    """Read one file; of a fat one, the slice for `prefer` if it has one."""
    image = read_image(window, prefer)
    markers = find_markers(image.window, image.symbols, binding_of) if image.symbols and not image.is_debug else {}
    return NativeFile(
        path=path,
        format="mach-o",
        os=image.os,
        arch=image.arch,
        name=image.name,
        needed=tuple(image.needed),
        optional=tuple(image.optional),
        rpaths=tuple(image.rpaths),
        markers=markers,
        built_for=image.built_for,
    )


def read_image(window: Window, prefer: str) -> Image:
    """Read the load commands, which alone take well under a millisecond."""
    magic = window.read(0, 4)
    if magic in FAT_MAGICS:
        window = _slice(window, prefer, wide=magic == FAT_MAGICS[1])
        magic = window.read(0, 4)
    if magic in MAGICS_32_BIT:
        raise Corrupt("a 32-bit Mach-O file, which no current macOS loads")
    if magic != MAGIC:
        raise Corrupt("not a Mach-O file")
    cpu, _, kind, count, size = window.unpack("<IIIII", 4)
    image = Image(window, _ARCHES.get(cpu, f"cpu {cpu:#x}"), kind == _DEBUG_FILE)
    if size > _MAX_COMMANDS_BYTES:
        raise Corrupt(f"{size} bytes of load commands are not plausible")
    for command, body in _commands(window.read(32, size), count):
        _take(image, command, body)
    if len(image.needed) > _MAX_NEEDED or len(image.rpaths) > _MAX_NEEDED:
        raise Corrupt(f"more than {_MAX_NEEDED} libraries or rpaths are not plausible")
    return image


def binding_of(entry: bytes) -> Binding | None:
    """How a symbol-table entry binds; None for debugger entries."""
    kind, described = entry[4], int.from_bytes(entry[6:8], "little")
    if kind & 0xE0:
        return None
    is_external = bool(kind & 0x01) and not kind & 0x10
    if kind & 0x0E == 0:
        is_common = any(entry[8:16])
        return "strong" if is_common else "imported"
    if not is_external:
        return "local"
    return "weak" if described & 0x80 else "strong"


def _slice(window: Window, prefer: str, wide: bool) -> Window:
    (count,) = window.unpack(">I", 4)
    if not 0 < count <= _MAX_SLICES:
        raise Corrupt("not a Mach-O file")
    slices: dict[str, Window] = {}
    for index in range(count):
        form, step = (">IIQQ", 32) if wide else (">IIII", 20)
        cpu, subtype, offset, size = window.unpack(form, 8 + index * step)
        arch = _ARCHES.get(cpu)
        if arch and (arch not in slices or subtype & 0xFF != _ARM64E):
            slices[arch] = window.part(offset, size)
    if not slices:
        raise Corrupt("a fat Mach-O file without an arm64 or x86_64 part")
    return slices.get(prefer) or next(iter(slices.values()))


def _commands(raw: bytes, count: int) -> Iterator[tuple[int, bytes]]:
    at = 0
    for _ in range(count):
        if at + 8 > len(raw):
            raise Corrupt("the load commands end early")
        command = int.from_bytes(raw[at : at + 4], "little")
        size = int.from_bytes(raw[at + 4 : at + 8], "little")
        if size < 8 or at + size > len(raw):
            raise Corrupt(f"a load command of {size} bytes")
        yield command, raw[at : at + size]
        at += size


def _take(image: Image, command: int, body: bytes) -> None:
    if command in _REFERENCES:
        name = _text(body)
        image.needed.append(name)
        if command == _LOAD_WEAK:
            image.optional.append(name)
    elif command == _ID:
        image.name = _text(body)
    elif command == _RPATH:
        image.rpaths.append(_text(body))
    elif command == _SYMTAB:
        offset, count, strings_offset, strings_size = (_number(body, at) for at in (8, 12, 16, 20))
        image.symbols = SymbolTable(
            offset, count * ENTRY_BYTES, ENTRY_BYTES, strings_offset, strings_size, prefix=b"_", order="<"
        )
    elif command == _BUILD_VERSION:
        image.os, image.built_for = _SYSTEMS.get(_number(body, 8), "macos"), _version(_number(body, 12))
    elif command == _VERSION_MIN:
        image.built_for = _version(_number(body, 8))


def _number(body: bytes, at: int) -> int:
    if at + 4 > len(body):
        raise Corrupt("a load command ends early")
    return int.from_bytes(body[at : at + 4], "little")


def _text(body: bytes) -> str:
    at = _number(body, 8)
    if not 12 <= at < len(body):
        raise Corrupt(f"a name at {at} in a load command of {len(body)} bytes")
    return plain_text(body[at:].partition(b"\0")[0])


def _version(packed: int) -> str:
    return f"{packed >> 16}.{packed >> 8 & 0xFF}"
