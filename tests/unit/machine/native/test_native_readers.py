"""Mach-O, ELF and PE: what is read from well-formed files, and that nothing else can do harm."""

import os
import struct
from pathlib import Path

import pytest
from build_binaries import GOMP, KMP, LIBOMP_11, LIBOMP_12, SHUTDOWN, SUSPEND, elf, fat, macho, pe
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast.machine.native.binary import NativeFile, Unreadable
from holdfast.machine.native.reader import read_native

WHOLE = {
    "macho": macho(name="@rpath/a.dylib", needed=["/usr/lib/libc.dylib"], rpaths=["@loader_path"], symbols=LIBOMP_12),
    "fat": fat(macho(arch="x86_64", symbols=LIBOMP_12), macho(arch="arm64", symbols=LIBOMP_11)),
    "elf": elf(name="liba.so.1", needed=["libc.so.6"], rpaths="$ORIGIN", symbols={GOMP: "strong"}),
    "elf without sections": elf(name="liba.so.1", needed=["libc.so.6"], symbols={GOMP: "strong"}, sections=False),
    "pe": pe(name="a.dll", needed=["KERNEL32.dll"], delayed=["late.dll"], exports=[KMP, "zz", "aa"]),
}


def read(folder: Path, content: bytes, prefer: str = "arm64") -> NativeFile | Unreadable:
    path = folder / "library.so"
    path.write_bytes(content)
    return read_native(str(path), prefer)


def read_well(folder: Path, content: bytes, prefer: str = "arm64") -> NativeFile:
    found = read(folder, content, prefer)
    assert isinstance(found, NativeFile), found
    return found


def read_badly(folder: Path, content: bytes) -> str:
    found = read(folder, content)
    assert isinstance(found, Unreadable), found
    return found.reason


def test_macos_library_names_references_and_symbols_are_read(tmp_path):
    found = read_well(
        tmp_path,
        macho(
            name="@rpath/libomp.dylib",
            needed=["/usr/lib/libSystem.B.dylib"],
            weak_needed=["@rpath/libmaybe.dylib"],
            rpaths=["@loader_path", "/opt/homebrew/opt/libomp/lib"],
            symbols={KMP: "strong", SUSPEND: "weak", SHUTDOWN: "local", GOMP: "imported"},
        ),
    )
    assert (found.format, found.os, found.arch, found.built_for) == ("mach-o", "macos", "arm64", "14.0")
    assert found.name == "@rpath/libomp.dylib"
    assert found.needed == ("/usr/lib/libSystem.B.dylib", "@rpath/libmaybe.dylib")
    assert found.optional == ("@rpath/libmaybe.dylib",)
    assert found.rpaths == ("@loader_path", "/opt/homebrew/opt/libomp/lib")
    assert found.markers == {"kmp": "strong", "kmp-suspend": "weak", "protobuf-shutdown": "local", "gomp": "imported"}


def test_private_and_debug_symbols_are_not_exported(tmp_path):
    assert read_well(tmp_path, macho(symbols={KMP: "private"})).markers == {"kmp": "local"}
    assert read_well(tmp_path, macho(symbols={KMP: "stab"})).markers == {}
    twice = macho(symbols=[(KMP, "stab"), (KMP, "strong"), (KMP, "imported")])
    assert read_well(tmp_path, twice).markers == {"kmp": "strong"}


def test_the_tail_of_a_longer_name_is_not_the_symbol(tmp_path):
    assert read_well(tmp_path, macho(symbols={"not_" + KMP: "strong"})).markers == {}
    # A merged string table may use that very tail for the real symbol.
    merged = elf(symbols={"not_" + KMP: "strong"})
    tail = merged.index(b"not_" + KMP.encode()) + 4 - merged.index(b"\0not_")
    entry = struct.pack("<IBBHQQ", tail, 0x12, 0, 1, 64, 8)
    assert read_well(tmp_path, merged.replace(bytes(24) + merged[200:224], bytes(24) + entry)).markers == {
        "kmp": "strong"
    }


def test_dsym_of_a_macos_library_is_not_a_runtime(tmp_path):
    assert read_well(tmp_path, macho(symbols=LIBOMP_12, kind=10)).markers == {}


@pytest.mark.parametrize("wide", [False, True])
def test_matching_part_of_a_fat_file_is_read(tmp_path, wide):
    both = fat(macho(arch="x86_64", name="intel"), macho(arch="arm64", name="apple"), wide=wide)
    assert read_well(tmp_path, both).name == "apple"
    assert read_well(tmp_path, both, prefer="x86_64").name == "intel"
    assert read_well(tmp_path, fat(macho(arch="x86_64", name="intel"), wide=wide)).arch == "x86_64"


def test_linux_library_names_references_and_symbols_are_read(tmp_path):
    content = elf(
        name="libgomp-e985bcbb.so.1.0.0",
        needed=["libc.so.6", "libm.so.6"],
        rpaths="$ORIGIN/../a.libs:$ORIGIN",
        symbols={GOMP: "strong", SUSPEND: "weak", KMP: "imported", "openblas_get_num_threads64_": "strong"},
    )
    found = read_well(tmp_path, content)
    assert (found.format, found.os, found.arch) == ("elf", "linux", "x86_64")
    assert found.name == "libgomp-e985bcbb.so.1.0.0"
    assert found.needed == ("libc.so.6", "libm.so.6")
    assert found.rpaths == ("$ORIGIN/../a.libs", "$ORIGIN")
    assert found.markers == {"gomp": "strong", "kmp-suspend": "weak", "kmp": "imported", "openblas": "strong"}


def test_a_linux_library_without_section_headers_is_read_alike(tmp_path):
    with_sections = read_well(tmp_path, WHOLE["elf"])
    assert with_sections.markers == read_well(tmp_path, WHOLE["elf without sections"]).markers == {"gomp": "strong"}


def test_a_big_endian_linux_library_is_read(tmp_path):
    found = read_well(tmp_path, elf(machine=22, order=">", needed=["libc.so.6"], symbols={GOMP: "strong"}))
    assert (found.arch, found.needed, found.markers) == ("s390x", ("libc.so.6",), {"gomp": "strong"})


def test_a_linux_debug_file_asks_for_nothing(tmp_path):
    content = bytearray(WHOLE["elf"])
    for header in (64, 120):  # its segments hold no bytes
        struct.pack_into("<Q", content, header + 32, 0)
    assert read_well(tmp_path, bytes(content)).needed == ()


def test_windows_library_name_imports_and_exports_are_read(tmp_path):
    content = pe(name="libiomp5md.dll", needed=["KERNEL32.dll"], delayed=["late.dll"], exports=["zz", KMP, "aa", GOMP])
    found = read_well(tmp_path, content)
    assert (found.format, found.os, found.arch) == ("pe", "windows", "x86_64")
    assert found.name == "libiomp5md.dll"
    assert found.needed == ("KERNEL32.dll", "late.dll")
    assert found.optional == ("late.dll",)
    assert found.markers == {"kmp": "strong", "gomp": "strong"}


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "an empty file"),
        (b"INPUT(-lgomp)\n", "not a Mach-O, ELF or PE file"),
        (b"\xce\xfa\xed\xfe" + bytes(64), "32-bit"),
        (elf(width=1), "32-bit"),
        (pe(magic=0x10B), "32-bit"),
        (b"\xca\xfe\xba\xbe\x00\x00\x00\x41" + bytes(64), "not a Mach-O file"),  # a Java class
        (b"MZ" + bytes(200), "DOS program"),
        (WHOLE["macho"][:-40], "but the file has"),
        (WHOLE["elf"][:300], "but the file has"),
    ],
)
def test_unreadable_file_error_gives_the_reason(tmp_path, content, reason):
    assert reason in read_badly(tmp_path, content)


def test_claims_beyond_belief_are_refused_without_being_followed(tmp_path):
    path = tmp_path / "library.so"
    content = bytearray(macho(symbols=LIBOMP_12))
    at = content.index(struct.pack("<II", 0x2, 24))
    struct.pack_into("<II", content, at + 16, 4096, 3 << 30)
    path.write_bytes(content)
    os.truncate(path, 4 << 30)  # sparse: the claim is even true
    found = read_native(str(path))
    assert isinstance(found, Unreadable)
    assert "not believable" in found.reason


@pytest.mark.timeout(30)  # walking each of them takes minutes
def test_of_many_dynamic_segments_only_one_is_walked(tmp_path):
    count, size = 2000, 1 << 20
    place = 64 + 56 * count
    header = b"\x7fELF\2\1\1" + bytes(9)
    header += struct.pack("<HHIQQQIHHHHHH", 3, 62, 1, 0, 64, 0, 0, 64, 56, count, 64, 0, 0)
    segments = struct.pack("<IIQQQQQQ", 2, 4, place, 0, 0, size, size, 8) * count
    assert read_well(tmp_path, header + segments + struct.pack("<QQ", 0x6FFFFEF5, 1) * (size // 16)).needed == ()


def test_a_pipe_with_a_librarys_name_is_not_opened(tmp_path):
    os.mkfifo(tmp_path / "pipe.so")
    refused = read_native(str(tmp_path / "pipe.so"))
    assert isinstance(refused, Unreadable)
    assert refused.path == str(tmp_path / "pipe.so")
    assert "regular" in refused.reason


def test_a_missing_file_is_unreadable(tmp_path):
    found = read_native(str(tmp_path / "gone.so"))
    assert isinstance(found, Unreadable)
    assert "No such file" in found.reason


def test_names_from_a_file_cannot_write_to_the_terminal(tmp_path):
    found = read_well(
        tmp_path, macho(name="@rpath/\x1b[2Jlib\udcff.dylib".encode("utf-8", "surrogateescape").decode("latin-1"))
    )
    assert found.name.isprintable()


def test_an_offset_that_occurs_everywhere_is_still_found(tmp_path):
    """The name stands at offset 2, whose bytes also stand at odd places of every other entry."""
    filler = [(f"f{index}", "strong") for index in range(5000)]
    content = bytearray(macho(symbols=[(KMP, "strong"), *filler]))
    at = content.index(struct.pack("<IBBHQ", 2, 0x0F, 1, 0, 4096))
    entries = bytearray(content[at : at + 16 * 5001])
    real, rest = bytes(entries[:16]), entries[16:]
    for place in range(0, len(rest), 16):
        rest[place + 8 : place + 16] = b"\0\x02\0\0\0\0\0\0"
    content[at : at + 16 * 5001] = rest + real
    assert read_well(tmp_path, bytes(content)).markers == {"kmp": "strong"}


@pytest.mark.parametrize("kind", WHOLE)
@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_damaged_file_is_read_or_refused_and_never_raises(tmp_path, kind, data):
    content = bytearray(WHOLE[kind])
    for _ in range(data.draw(st.integers(1, 6))):
        at = data.draw(st.integers(0, len(content) - 1))
        patch = data.draw(
            st.sampled_from([b"\0", b"\xff", b"\xff\xff\xff\xff", b"\xff\xff\xff\x7f", b"\1\0\0\0\0\0\0\0"])
        )
        content[at : at + len(patch)] = patch
    content = content[: data.draw(st.integers(1, len(content)))]
    assert isinstance(read(tmp_path, bytes(content)), NativeFile | Unreadable)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    magic=st.sampled_from([b"", b"\xcf\xfa\xed\xfe", b"\xca\xfe\xba\xbe\0\0\0\2", b"\x7fELF\2\1", b"MZ"]),
    rest=st.binary(max_size=400),
)
def test_random_bytes_are_read_or_refused_and_never_raise(tmp_path, magic, rest):
    assert isinstance(read(tmp_path, magic + rest), NativeFile | Unreadable)
