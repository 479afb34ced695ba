"""Reads every native file under some folders and finds its distribution. Nothing is imported.

The sources are the dist-info/RECORD lists and the native files, for any system. Files that are never loaded on import
(torch's own programs and tests) and files for another system than most are left out.
"""

import csv
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from holdfast.machine.libraries import canonical
from holdfast.machine.native.binary import NativeFile, Unreadable, is_file, printable
from holdfast.machine.native.reader import read_native
from holdfast.machine.native.site_packages import prefix_of

_NATIVE = re.compile(r"\.(?:so|dylib|pyd|dll)$|\.so\.[\d.]+$", re.IGNORECASE)
_NEVER_LOADED = ("torch/bin", "torch/test")
_RECORDED = re.compile(r"^(?P<name>.+?)-(?P<version>[^-]+)(?:-.*)?\.(?:dist-info|egg-info)$")


@dataclass(frozen=True, slots=True)
class OwnedFile:
    """A native file and its distribution."""

    owner: str  # "torch 2.8.0"; without a version where no record claims the file
    relative: str  # the path inside its root, for display
    native: NativeFile

    @property
    def package(self) -> str:
        """The distribution's name alone."""
        return self.owner.partition(" ")[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scan:
    """All native files of some folders, for one system."""

    roots: tuple[str, ...]
    os: str = ""  # empty when there is no native file
    arch: str = ""
    distributions: Mapping[str, str]  # canonical name -> version, those without native files too
    files: tuple[OwnedFile, ...] = ()
    unreadable: tuple[Unreadable, ...] = ()
    left_out: Mapping[str, int]  # "windows x86_64" -> files for that system


def scan_roots(roots: Iterable[Path], prefer: str = "arm64") -> Scan:
    """Read every native file under the roots; `prefer` picks the part of fat macOS files when all are fat."""
    roots = tuple(Path(os.path.normpath(root.absolute())) for root in roots)
    files: list[OwnedFile] = []
    unreadable: list[Unreadable] = []
    versions: dict[str, str] = {}
    for root in roots:
        owners, here = _records(root)
        versions.update(here)
        for path in sorted({*_native_paths(root), *_recorded_outside(owners, root)}):
            relative = os.path.relpath(path, root).replace(os.sep, "/")
            name = owners.get(os.path.normpath(path)) or canonical(_top(relative))
            found = read_native(path, prefer)
            if isinstance(found, Unreadable):
                unreadable.append(Unreadable(printable(relative), found.reason))
            else:
                files.append(OwnedFile(f"{name} {here.get(name, '')}".strip(), printable(relative), found))
    system, arch = _most_common((file.native.os, file.native.arch) for file in files)
    kept, others = [], Counter[str]()
    for file in files:
        match = _for_arch(file, system, arch)
        if match is None:
            others[f"{file.native.os} {file.native.arch}"] += 1
        else:
            kept.append(match)
    return Scan(
        roots=tuple(map(str, roots)),
        os=system,
        arch=arch,
        distributions=dict(sorted(versions.items())),
        files=tuple(kept),
        unreadable=tuple(unreadable),
        left_out=dict(others),
    )


def _records(root: Path) -> tuple[dict[str, str], dict[str, str]]:
    """Who owns which native file (by full path), and the version of each distribution."""
    owners: dict[str, str] = {}
    versions: dict[str, str] = {}
    try:
        entries = sorted(root.iterdir())
    except OSError:
        return owners, versions
    for entry in entries:
        match = _RECORDED.match(entry.name)
        if not match:
            continue
        name = canonical(match["name"])
        versions[name] = printable(match["version"])
        for relative in _recorded_natives(entry / "RECORD"):
            owners[os.path.normpath(root / relative)] = name
    return owners, versions


def _recorded_natives(record: Path) -> Iterator[str]:
    try:
        with record.open(encoding="utf-8", errors="surrogateescape", newline="") as lines:
            for line in lines:
                quoted = line.startswith('"')
                path = next(csv.reader([line]), [""])[0] if quoted else line.partition(",")[0]
                if _NATIVE.search(path) and "\0" not in path:
                    yield path.replace("\\", "/")
    except (OSError, csv.Error):  # no list: the top folder names the owner
        return


def _recorded_outside(owners: Mapping[str, str], root: Path) -> Iterator[str]:
    """Files that a wheel put outside site-packages, such as intel-openmp's in the environment's lib folder."""
    inside, around = f"{root}{os.sep}", f"{prefix_of(root)}{os.sep}"
    for path in owners:
        if path.startswith(around) and not path.startswith(inside) and is_file(path):
            yield path


def _native_paths(root: Path) -> Iterator[str]:
    """Every file with a native library's name; scandir walks 27,000 files in a tenth of a second."""
    skipped = {str(root / part) for part in _NEVER_LOADED}
    folders = [str(root)]
    while folders:
        try:
            with os.scandir(folders.pop()) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        if entry.name != "__pycache__" and entry.path not in skipped:
                            folders.append(entry.path)
                    elif _NATIVE.search(entry.name) and not entry.name.startswith("._"):
                        yield entry.path
        except OSError:  # a folder that may not be entered hides its files from the loader as well
            continue


def _top(relative: str) -> str:
    """The first folder of a path, or the name of a lone extension module; `faiss_cpu.libs` belongs to `faiss_cpu`."""
    first = relative.split("/")[0]
    return first.removesuffix(".libs") if "/" in relative else first.split(".")[0]


def _most_common(systems: Iterable[tuple[str, str]]) -> tuple[str, str]:
    counted = Counter(systems).most_common(1)
    return counted[0][0] if counted else ("", "")


def _for_arch(file: OwnedFile, system: str, arch: str) -> OwnedFile | None:
    if (file.native.os, file.native.arch) == (system, arch):
        return file
    if file.native.os == system == "macos":  # a fat file may have the other part too
        again = read_native(file.native.path, prefer=arch)
        if isinstance(again, NativeFile) and again.arch == arch:
            return OwnedFile(file.owner, file.relative, again)
    return None
