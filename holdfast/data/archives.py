"""Unpacks an archive of data files into the cache, within bounds: ZIP and tar, also compressed.

An archive may be hostile, so names that lead out of the folder, links, devices and contents far larger than the archive
are refused before anything of them is written.
"""

import hashlib
import lzma
import os
import shutil
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO

from holdfast.core.disk_space import FULL, why_not
from holdfast.core.env import cache_folder
from holdfast.core.errors import MachineError, RequestError
from holdfast.core.progress import Progress, no_progress
from holdfast.core.text import human_bytes
from holdfast.data.magic import name_of_binary
from holdfast.data.rawfile import HEAD_BYTES, open_bytes, reading

MOST_FILES = 300_000
MOST_BYTES = 50_000_000_000
MOST_TIMES = 200  # the size of the archive, for contents of more than a few megabytes
_ALWAYS_BYTES = 200_000_000
_CHUNK_BYTES = 1 << 20
_KEPT = 8  # archives in the cache
_COMPRESSED_TARS = (".tar.bz2", ".tbz", ".tbz2", ".tar.xz", ".txz")
_DAMAGED = (zipfile.BadZipFile, tarfile.TarError, zlib.error, lzma.LZMAError, EOFError, NotImplementedError)


@dataclass(frozen=True, slots=True)
class _Entry:
    """One file in an archive."""

    name: str
    size: int
    kind: str  # "file", or what else it is
    content: IO[bytes] | None


def is_archive(path: Path) -> bool:
    """Whether a file is an archive that can be unpacked."""
    if path.name.lower().endswith(_COMPRESSED_TARS):
        return True
    with open_bytes(path) as file, reading(path):
        return name_of_binary(file.read(HEAD_BYTES)) in ("a ZIP archive", "a tar archive")


def unpack(path: Path, on_progress: Progress = no_progress) -> Path:
    """The folder with the files of an archive, unpacked now or earlier."""
    digest = hashlib.sha256()
    with reading(path), path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
    home = cache_folder() / "unpacked" / digest.hexdigest()[:24]
    if home.is_dir():
        os.utime(home)  # marks it as used just now
        return home
    home.parent.mkdir(parents=True, exist_ok=True)
    draft = home.with_name(f".{home.name}.draft-{os.getpid()}")
    shutil.rmtree(draft, ignore_errors=True)
    try:
        draft.mkdir()
        _write_all(path, draft, on_progress)
        try:
            draft.rename(home)
        except OSError:
            if not home.is_dir():  # otherwise another process has unpacked the same archive meanwhile
                raise
        _forget_oldest(home.parent)
    except _DAMAGED as error:
        raise RequestError(
            f"{path.name} is damaged: it cannot be unpacked",
            found=str(error)[:200] or type(error).__name__,
            try_next=("copy or download the file again",),
        ) from error
    except OSError as error:
        if error.errno not in FULL:
            raise
        raise MachineError(
            f"disk full: {path.name} cannot be unpacked in {home.parent}",
            found=why_not(error, home.parent),
            try_next=("free some space, or unpack it on another disk and use the folder",),
            slug="disk-full",
        ) from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return home


def _forget_oldest(cache: Path) -> None:
    """Keep only the archives that were used last; an older one is unpacked again when it is needed."""
    entries = [path for path in cache.iterdir() if not path.name.startswith(".")]
    for path in sorted(entries, key=_changed_at, reverse=True)[_KEPT:]:
        shutil.rmtree(path, ignore_errors=True)


def _changed_at(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:  # another process has removed it
        return 0.0


def _write_all(path: Path, folder: Path, on_progress: Progress) -> None:
    packed = path.stat().st_size
    most = min(MOST_BYTES, max(_ALWAYS_BYTES, MOST_TIMES * packed))
    written = files = 0
    for entry in _entries(path):
        _check_entry(path, entry)
        name = PurePosixPath(entry.name)
        if entry.content is None or name.parts[0] == "__MACOSX" or name.name.startswith("."):
            continue
        files += 1
        if files > MOST_FILES:
            raise _too_large(path, f"more than {MOST_FILES:,} files")
        with _new_file(path, folder.joinpath(*name.parts), entry) as out:
            while chunk := entry.content.read(_CHUNK_BYTES):
                written += len(chunk)
                if written > most:
                    raise _too_large(path, f"more than {human_bytes(most)} in an archive of {human_bytes(packed)}")
                out.write(chunk)
                on_progress(f"unpacking {path.name}", written, None, "bytes")
    if not files:
        raise RequestError(f"{path.name} is an archive without files", found=human_bytes(packed))


def _new_file(path: Path, target: Path, entry: _Entry) -> IO[bytes]:
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        return target.open("xb")
    except (FileExistsError, NotADirectoryError) as error:  # also names that differ only in case, on a Mac
        raise RequestError(
            f"{path.name} cannot be unpacked: two entries have the same name",
            found=repr(entry.name[:100]),
            try_next=("pack the files again, each under its own name",),
        ) from error


def _entries(path: Path) -> Iterator[_Entry]:
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            for one in archive.infolist():
                kind = "a link" if stat.S_ISLNK(one.external_attr >> 16) else "file"
                if one.flag_bits & 1:
                    kind = "encrypted"
                if one.is_dir() or kind != "file":
                    yield _Entry(one.filename, 0, "folder" if one.is_dir() else kind, None)
                    continue
                with archive.open(one) as content:
                    yield _Entry(one.filename, one.file_size, kind, content)
        return
    with tarfile.open(path, "r|*") as archive:
        for member in archive:
            kind = "a link" if member.issym() or member.islnk() else "folder" if member.isdir() else "a device"
            if not member.isfile():
                yield _Entry(member.name, 0, kind, None)
                continue
            yield _Entry(member.name, member.size, "file", archive.extractfile(member))


def _check_entry(path: Path, entry: _Entry) -> None:
    name = PurePosixPath(entry.name)
    leads_out = name.is_absolute() or ".." in name.parts or "\\" in entry.name or ":" in (name.parts or ("",))[0]
    if leads_out or "\0" in entry.name or (not name.parts and entry.kind != "folder"):
        raise RequestError(
            f"{path.name} has a file whose name leads out of the archive",
            found=repr(entry.name[:100]),
            try_next=("pack the files again, with names relative to their folder",),
        )
    if entry.kind not in ("file", "folder"):
        raise RequestError(
            f"{path.name} cannot be unpacked: an entry is {entry.kind}",
            found=repr(entry.name[:100]),
            try_next=("pack plain files, without a password",),
        )


def _too_large(path: Path, found: str) -> RequestError:
    return RequestError(
        f"{path.name} unpacks to too much", found=found, try_next=("unpack it yourself and use the folder",)
    )
