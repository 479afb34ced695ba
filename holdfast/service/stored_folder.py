"""Folders in the object store, each stored whole or not at all.

    STORE/runs/7/TOKEN/SHA256...          the files, each named by its content
    STORE/runs/7/TOKEN/index-000003.json  which files make up the folder: written last; the newest complete one counts

TOKEN is the fencing token of one writer: a writer whose claim was lost may still write, but only where nobody reads any
more. Files may become visible late and in any order, so every kind of store will do.
"""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path, PurePosixPath

from holdfast.core.disk_space import FULL
from holdfast.core.errors import MachineError
from holdfast.service.object_store import ObjectStore

_INDEX = re.compile(r"index-(\d{6})\.json")
READ_BYTES = 64 * 1024**2  # smaller files are read at once: they may grow while they are sent


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredFile:
    """A file to store. With a checksum, written down when the file was made, it must have exactly that content."""

    path: Path
    sha256: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """A folder as it is in the store."""

    fence: str
    index: str
    files: Mapping[str, str]  # name in the folder -> checksum

    @property
    def mark(self) -> str:
        """A name that differs for every snapshot."""
        return f"{self.fence}/{self.index}"


class StoredFolder:
    """One folder in the store; `made` tells it from one with the same number in another database."""

    def __init__(self, store: ObjectStore, kind: str, number: int, made: datetime):
        self._store, self._path, self._made = store, f"{store.root}/{kind}/{number}", made.isoformat()

    def newest(self) -> Snapshot | None:
        """The newest complete snapshot."""
        with self._store.explained():
            for fence in sorted(self._store.names(self._path), reverse=True):
                for name in sorted(filter(_INDEX.fullmatch, self._store.names(f"{self._path}/{fence}")), reverse=True):
                    if files := self._read_index(f"{self._path}/{fence}/{name}"):
                        return Snapshot(fence=fence, index=name, files=files)
        return None

    def put(self, fence: str, groups: Sequence[Mapping[str, StoredFile]], *, kept: str = "") -> list[str]:
        """Store a folder as it is now, each group of files whole or not at all; return the names of skipped files.

        If every file whose name starts with `kept` had to be skipped, the ones stored before are kept.
        """
        listed: dict[str, str] = {}
        left_out: list[str] = []
        place = f"{self._path}/{fence}"
        with self._store.explained():
            there = self._store.names(place)
            for group in groups:
                try:
                    listed |= {name: self._put(place, item, there) for name, item in group.items()}
                except _Changed:
                    left_out += group
            if kept and any(name.startswith(kept) for name in left_out):
                listed |= {} if any(name.startswith(kept) for name in listed) else self._carried(fence, kept)
            self._write_index(fence, listed, there)
            for other in self._store.names(self._path):
                if other < fence:
                    self._store.drop(f"{self._path}/{other}")
        return left_out

    def keep(self, copy: Snapshot, names: Sequence[str]) -> None:
        """Keep only these files of a snapshot."""
        with self._store.explained():
            there = self._store.names(f"{self._path}/{copy.fence}")
            self._write_index(copy.fence, {name: copy.files[name] for name in names}, there)

    def get(self, copy: Snapshot, names: Sequence[str], folder: Path) -> list[str]:
        """Download these files into a folder; return the names of those that are missing or damaged."""
        damaged = []
        with self._store.explained():
            for name in names:
                target = folder / name
                try:
                    target.parent.mkdir(parents=True, exist_ok=True)
                    self._store.files.get_file(f"{self._path}/{copy.fence}/{copy.files[name]}", str(target))
                    is_whole = _checksum(target) == copy.files[name]
                except FileNotFoundError:
                    is_whole = False
                except OSError as error:
                    if error.errno not in FULL:  # a full disk on this machine
                        raise
                    raise _full(error) from error
                if not is_whole:
                    target.unlink(missing_ok=True)
                    damaged.append(name)
        return damaged

    def drop(self) -> None:
        """Delete the folder from the store."""
        with self._store.explained():
            self._store.drop(self._path)

    def _write_index(self, fence: str, listed: Mapping[str, str], there: Mapping[str, int]) -> None:
        """Write the new index, then delete what it no longer names."""
        place = f"{self._path}/{fence}"
        numbers = [int(found[1]) for name in there if (found := _INDEX.fullmatch(name))]
        index = f"index-{max(numbers, default=0) + 1:06d}.json"
        self._store.write(f"{place}/{index}", json.dumps({"made": self._made, "files": listed}).encode())
        for name in there.keys() - {*listed.values()}:
            self._store.drop(f"{place}/{name}")

    def _carried(self, fence: str, kept: str) -> dict[str, str]:
        """The files with such names from the newest snapshot, copied under this fencing token."""
        copy = self.newest()
        if copy is None or copy.fence > fence:
            return {}
        found = {name: sha256 for name, sha256 in copy.files.items() if name.startswith(kept)}
        for sha256 in {*found.values()} if copy.fence < fence else ():
            self._store.copy(f"{self._path}/{copy.fence}/{sha256}", f"{self._path}/{fence}/{sha256}")
        return found

    def _put(self, place: str, item: StoredFile, there: dict[str, int]) -> str:
        content, size, found = _read(item)
        if there.get(found) != size:
            try:
                self._store.write(f"{place}/{found}", content)
            except FileNotFoundError:
                if item.path.exists():
                    raise
                raise _Changed from None
            there[found] = size
        return found

    def _read_index(self, path: str) -> dict[str, str]:
        """The files of an index; none if it is incomplete, of another database, or leads out of its folder."""
        try:
            found = json.loads(self._store.files.cat_file(path))
            files = {str(name): str(sha256) for name, sha256 in found["files"].items()}
        except (ValueError, KeyError, FileNotFoundError):
            return {}
        is_inside = not any(PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts for name in files)
        return files if is_inside and found.get("made") == self._made else {}


class _Changed(Exception):
    """A file is gone, or differs from its checksum."""


def _read(item: StoredFile) -> tuple[bytes | Path, int, str]:
    """The content to store, its size and its checksum."""
    try:
        size = item.path.stat().st_size
        if size <= READ_BYTES:
            read = item.path.read_bytes()
            content: bytes | Path = read
            size, found = len(read), hashlib.sha256(read).hexdigest()
        else:
            content, found = item.path, _checksum(item.path)
    except FileNotFoundError:
        raise _Changed from None
    if item.sha256 and found != item.sha256:
        raise _Changed
    return content, size, found


def _full(error: OSError) -> MachineError:
    return MachineError(
        "not enough disk space to fetch the run from the store",
        found=error.strerror or str(error),
        try_next=("free some space, or let another machine take the run", "then resume the run"),
    )


def _checksum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
