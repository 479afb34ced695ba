"""Builds the smallest Mach-O, ELF and PE files that carry what our readers look at, and folders of such packages."""

import struct
from collections.abc import Iterable, Mapping
from pathlib import Path

KMP = "__kmpc_fork_call"
GOMP = "GOMP_parallel"
SUSPEND = "_Z16__kmp_suspend_64ILb0ELb1EEviP11kmp_flag_64IXT_EXT0_EE"
SHUTDOWN = "_ZZN6google8protobuf8internal12ShutdownData3getEvE4data"
OLD_PROTOBUF = "_ZN6google8protobuf8internal10LogMessageC1ENS0_8LogLevelEPKci"

LIBOMP_12 = {KMP: "strong", GOMP: "strong", SUSPEND: "weak"}
LIBOMP_11 = {KMP: "strong", GOMP: "strong"}

_MACHO_CPU = {"arm64": 0x0100000C, "x86_64": 0x01000007}
_MACHO_BINDING = {
    "strong": (0x0F, 0),
    "weak": (0x0F, 0x80),
    "local": (0x0E, 0),
    "private": (0x1F, 0),
    "imported": (0x01, 0x0100),
    "stab": (0x24, 0),
}


def macho(
    *,
    name: str = "",
    needed: Iterable[str] = (),
    weak_needed: Iterable[str] = (),
    rpaths: Iterable[str] = (),
    symbols: Mapping[str, str] | Iterable[tuple[str, str]] = (),
    arch: str = "arm64",
    built_for: tuple[int, int] = (14, 0),
    kind: int = 6,
) -> bytes:
    """A 64-bit Mach-O file; symbols are C names, each with its binding."""
    commands = [_macho_text(0xD, name, 24)] if name else []
    commands += [_macho_text(0xC, one, 24) for one in needed]
    commands += [_macho_text(0x80000018, one, 24) for one in weak_needed]
    commands += [_macho_text(0x8000001C, one, 12) for one in rpaths]
    commands.append(struct.pack("<IIIIII", 0x32, 24, 1, built_for[0] << 16 | built_for[1] << 8, 0, 0))
    pairs = list(symbols.items()) if isinstance(symbols, Mapping) else list(symbols)
    strings, entries = b" \0", b""
    for symbol, binding in pairs:
        kind_byte, described = _MACHO_BINDING[binding]
        entries += struct.pack("<IBBHQ", len(strings), kind_byte, 1, described, 4096)[
            : 16 if binding != "imported" else 8
        ]
        entries += bytes(8) if binding == "imported" else b""
        strings += b"_" + symbol.encode() + b"\0"
    size = sum(map(len, commands)) + 24
    at = 32 + size
    commands.append(struct.pack("<IIIIII", 0x2, 24, at, len(pairs), at + len(entries), len(strings)))
    header = struct.pack("<IIIIIIII", 0xFEEDFACF, _MACHO_CPU[arch], 0, kind, len(commands), size, 0, 0)
    return header + b"".join(commands) + entries + strings


def fat(*parts: bytes, wide: bool = False) -> bytes:
    """A fat file of several Mach-O files."""
    form = ">IIQQII" if wide else ">IIIII"
    at = 8 + len(parts) * struct.calcsize(form)
    header = struct.pack(">II", 0xCAFEBABF if wide else 0xCAFEBABE, len(parts))
    for part in parts:
        cpu = struct.unpack_from("<I", part, 4)[0]
        header += struct.pack(form, cpu, 0, at, len(part), 0, *([0] if wide else []))
        at += len(part)
    return header + b"".join(parts)


def elf(
    *,
    name: str = "",
    needed: Iterable[str] = (),
    rpaths: str = "",
    runpath: bool = True,
    symbols: Mapping[str, str] | Iterable[tuple[str, str]] = (),
    machine: int = 62,
    sections: bool = True,
    order: str = "<",
    width: int = 2,
) -> bytes:
    """A 64-bit ELF shared object, loaded at address 0 so that addresses are offsets."""
    strings = b"\0"

    def text(value: str) -> int:
        nonlocal strings
        strings += value.encode() + b"\0"
        return len(strings) - len(value.encode()) - 1

    pairs = list(symbols.items()) if isinstance(symbols, Mapping) else list(symbols)
    entries = bytes(24)
    for symbol, binding in pairs:
        info = {"strong": 0x12, "weak": 0x22, "local": 0x02, "imported": 0x12}[binding]
        entries += struct.pack(order + "IBBHQQ", text(symbol), info, 0, 0 if binding == "imported" else 1, 64, 8)
    tags = [(1, text(one)) for one in needed]
    tags += [(14, text(name))] if name else []
    tags += [(29 if runpath else 15, text(rpaths))] if rpaths else []
    symbols_at = 64 + 2 * 56
    strings_at = symbols_at + len(entries)
    dynamic_at = strings_at + len(strings)
    tags += [(5, strings_at), (6, symbols_at), (10, len(strings)), (0, 0)]
    dynamic = b"".join(struct.pack(order + "QQ", *tag) for tag in tags)
    end = dynamic_at + len(dynamic)
    table = b""
    if sections:
        table = struct.pack(order + "IIQQQQIIQQ", 0, 11, 2, symbols_at, symbols_at, len(entries), 2, 1, 8, 24)
    header = b"\x7fELF" + bytes([width, 1 if order == "<" else 2, 1, 0]) + bytes(8)
    header += struct.pack(
        order + "HHIQQQIHHHHHH", 3, machine, 1, 0, 64, end if sections else 0, 0, 64, 56, 2, 64, int(sections), 0
    )
    load = struct.pack(order + "IIQQQQQQ", 1, 5, 0, 0, 0, end, end, 4096)
    dyn = struct.pack(order + "IIQQQQQQ", 2, 6, dynamic_at, dynamic_at, dynamic_at, len(dynamic), len(dynamic), 8)
    return header + load + dyn + entries + strings + dynamic + table


def pe(
    *,
    name: str = "",
    needed: Iterable[str] = (),
    delayed: Iterable[str] = (),
    exports: Iterable[str] = (),
    machine: int = 0x8664,
    magic: int = 0x20B,
) -> bytes:
    """A PE32+ library with one section, whose addresses are its offsets plus 0x1000."""
    base, data = 0x1000, b""

    def put(raw: bytes) -> int:
        nonlocal data
        data += raw
        return base + len(data) - len(raw)

    needed, delayed, exports = list(needed), list(delayed), sorted(exports)
    names = [put(one.encode() + b"\0") for one in needed]
    imports = put(b"".join(struct.pack("<IIIII", 1, 0, 0, at, 1) for at in names) + bytes(20)) if needed else 0
    late = [put(one.encode() + b"\0") for one in delayed]
    delays = (
        put(b"".join(struct.pack("<IIIIIIII", 1, at, 0, 0, 0, 0, 0, 0) for at in late) + bytes(32)) if delayed else 0
    )
    directory = 0
    if name or exports:
        own = put((name or "a.dll").encode() + b"\0")
        pointers = [put(one.encode() + b"\0") for one in exports]
        table = put(b"".join(struct.pack("<I", at) for at in pointers) + bytes(4))
        directory = put(struct.pack("<IIHHIIIIIII", 0, 0, 0, 0, own, 1, len(exports), len(exports), 0, table, 0))
    directories = {0: directory, 1: imports, 13: delays}
    optional = struct.pack("<H", magic) + bytes(106) + struct.pack("<I", 16)
    optional += b"".join(struct.pack("<II", directories.get(index, 0), 0) for index in range(16))
    head = b"MZ" + bytes(58) + struct.pack("<I", 64)
    head += b"PE\0\0" + struct.pack("<HHIIIHH", machine, 1, 0, 0, 0, len(optional), 0x2000) + optional
    offset = len(head) + 40
    section = b".rdata\0\0" + struct.pack("<IIIIIIHHI", len(data), base, len(data), offset, 0, 0, 0, 0, 0)
    return head + section + data


def install(site: Path, distribution: str, version: str, files: Mapping[str, bytes], *, record: bool = True) -> None:
    """Put a package into a site-packages folder as an installer would."""
    info = f"{distribution.replace('-', '_')}-{version}.dist-info"
    for relative, content in files.items():
        path = site / relative
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    (site / info).mkdir(parents=True, exist_ok=True)
    (site / info / "METADATA").write_text(f"Name: {distribution}\nVersion: {version}\n")
    if record:
        lines = [f"{relative},sha256=x,{len(content)}" for relative, content in files.items()]
        (site / info / "RECORD").write_text("\n".join([*lines, f"{info}/RECORD,,"]) + "\n")


def _macho_text(command: int, value: str, at: int) -> bytes:
    raw = value.encode() + b"\0"
    raw += bytes(-(at + len(raw)) % 8)
    return struct.pack("<III", command, at + len(raw), at) + bytes(at - 12) + raw
