"""Reads a native file of any system. It never fails: an unreadable file is returned with the reason."""

import stat
from pathlib import Path

from holdfast.machine.native import elf, macho, pe
from holdfast.machine.native.binary import Corrupt, NativeFile, Unreadable, Window


def read_native(path: str, prefer: str = "arm64") -> NativeFile | Unreadable:
    """Read one library or extension module; `prefer` picks the part of a fat macOS file."""
    try:
        found = Path(path).stat()
        if not stat.S_ISREG(found.st_mode):  # opening a pipe would wait forever
            return Unreadable(path, "not a regular file")
        with Path(path).open("rb", buffering=0) as file:
            window = Window(file, 0, found.st_size)
            magic = window.read(0, min(4, window.size))
            if magic in (macho.MAGIC, *macho.MAGICS_32_BIT, *macho.FAT_MAGICS):
                return macho.read_macho(window, path, prefer)
            if magic == elf.MAGIC:
                return elf.read_elf(window, path)
            if magic[:2] == pe.MAGIC:
                return pe.read_pe(window, path)
    except Corrupt as error:
        return Unreadable(path, str(error))
    except OSError as error:
        return Unreadable(path, error.strerror or str(error))
    return Unreadable(path, "not a Mach-O, ELF or PE file" if window.size else "an empty file")
