"""Finds the runtimes among native files: who carries or needs an OpenMP runtime, which BLAS, which protobuf."""

import os
import re
from collections.abc import Container, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Literal

from holdfast.machine.native.binary import NativeFile
from holdfast.machine.native.scan import OwnedFile, Scan

Kind = Literal["libomp", "libiomp", "libgomp", "vcomp"]

_OPENMP_NAMES: tuple[tuple[Kind, str], ...] = (
    ("libomp", r"libomp(?:\d+)?(?:[-.].*)?\.(?:dylib|dll|so)(?:\.[\d.]+)?"),
    ("libiomp", r"libiomp5?(?:md|_db)?(?:[-.].*)?\.(?:dylib|dll|so)(?:\.[\d.]+)?"),
    ("libgomp", r"libgomp(?:[-.].*)?\.(?:dylib|dll|so)(?:\.[\d.]+)?"),
    ("vcomp", r"vcomp\d*d?(?:[-.].*)?\.dll"),
)
_BLAS_NAMES = (
    ("Accelerate", r"(?:Accelerate|vecLib|libBLAS\.dylib|libLAPACK\.dylib)"),
    ("OpenBLAS", r"(?:lib)?(?:scipy_)?openblas.*"),
    ("MKL", r"(?:lib)?mkl_(?:rt|core)[._].*"),
)
_MAX_NAME = 255  # of a file, on every system
# Only loaded on request, and the package has alternatives: a missing one breaks nothing.
_SPARE = {"numba": "omppool"}


@dataclass(frozen=True, slots=True)
class Carried:
    """A copy of an OpenMP runtime in a distribution."""

    owner: str
    file: str
    kind: Kind
    name: str  # its own install name or soname
    merges: bool  # exports the weak wait functions of libomp 12 and later
    built_for: str = ""
    used: bool = True  # False if no import loads it
    link_to: str = ""  # the file that it links to, if it is a link


@dataclass(frozen=True, slots=True)
class OpenmpRequest:
    """One file that needs an OpenMP runtime, as its loader sees it."""

    owner: str
    path: str
    file: str
    reference: str
    kind: Kind
    search: tuple[str, ...] = ()  # folders of its rpaths, then of its loaders
    is_spare: bool = False


@dataclass(frozen=True, slots=True)
class OpenmpUse:
    """A reference of a distribution to an OpenMP runtime, and the number of its files with it."""

    owner: str
    reference: str
    files: int
    rpaths: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Blas:
    """The linear algebra library of a distribution."""

    owner: str
    library: str


@dataclass(frozen=True, slots=True)
class ProtobufExport:
    """A protobuf copy whose lock macOS shares with every other copy that exports it."""

    owner: str
    files: tuple[str, ...]
    generation: Literal["old", "new"]  # old: protobuf up to 21, std::mutex; new: 22 and later, absl::Mutex


@lru_cache(maxsize=4096)
def openmp_kind(name: str) -> Kind | None:
    """The OpenMP runtime that a file name or a reference means; None for any other library."""
    leaf = name.replace("\\", "/").rsplit("/", 1)[-1]
    if len(leaf) > _MAX_NAME:
        return None
    for kind, pattern in _OPENMP_NAMES:
        if re.fullmatch(pattern, leaf, re.IGNORECASE):
            return kind
    return None


def runtime_kind(native: NativeFile) -> Kind | None:
    """The OpenMP runtime that a file is, by its symbols; the name only decides between related ones."""
    named = openmp_kind(native.leaf)
    if native.markers.get("kmp", "imported") != "imported":
        return "libiomp" if named == "libiomp" else "libomp"
    if native.markers.get("gomp", "imported") != "imported":
        return "libgomp"
    return named if named == "vcomp" else None


def carried_runtimes(scan: Scan, loaded: Container[str]) -> tuple[Carried, ...]:
    """Every copy of an OpenMP runtime in the folders; `loaded` has the paths that some import loads."""
    by_path = {os.path.realpath(file.native.path): file.relative for file in scan.files if not _is_link(file)}
    carried = []
    for file in scan.files:
        kind = runtime_kind(file.native)
        if kind:
            real = os.path.realpath(file.native.path)
            carried.append(
                Carried(
                    owner=file.owner,
                    file=file.relative,
                    kind=kind,
                    name=file.native.name,
                    merges=file.native.markers.get("kmp-suspend") == "weak",
                    built_for=file.native.built_for,
                    used=os.path.normpath(file.native.path) in loaded,
                    link_to=by_path.get(real, real) if _is_link(file) else "",
                )
            )
    return tuple(carried)


def openmp_requests(scan: Scan) -> tuple[OpenmpRequest, ...]:
    """Every file that needs an OpenMP runtime or has one linked in."""
    loaders = _loaders(scan)
    requests = []
    for file in scan.files:
        kind = runtime_kind(file.native)
        if kind and openmp_kind(file.native.leaf) is None:  # linked in statically: the file is the copy
            requests.append(OpenmpRequest(file.owner, file.native.path, file.relative, file.native.path, kind))
        for reference in file.native.needed:
            kind = openmp_kind(reference)
            if kind is None or reference in file.native.optional or runtime_kind(file.native):
                continue
            spare = _SPARE.get(file.package)
            requests.append(
                OpenmpRequest(
                    file.owner,
                    file.native.path,
                    file.relative,
                    reference,
                    kind,
                    _search_folders(file, loaders),
                    spare is not None and spare in file.relative,
                )
            )
    return tuple(requests)


def openmp_uses(scan: Scan) -> tuple[OpenmpUse, ...]:
    """The OpenMP references of each distribution, each once."""
    counted: dict[tuple[str, str], list[OwnedFile]] = {}
    for file in scan.files:
        for reference in file.native.needed:
            if openmp_kind(reference):
                counted.setdefault((file.owner, reference), []).append(file)
    return tuple(
        OpenmpUse(owner, reference, len(files), tuple(sorted({path for file in files for path in file.native.rpaths})))
        for (owner, reference), files in sorted(counted.items())
    )


def blas_libraries(scan: Scan) -> tuple[Blas, ...]:
    """The BLAS of each distribution: the system's, its own copy, or linked into one of its files."""
    found: dict[tuple[str, str], None] = {}
    for file in scan.files:
        native = file.native
        for name in native.needed:
            library = _blas_kind(name)
            if library == "Accelerate":
                found[file.owner, library] = None
        own = _blas_kind(native.leaf)
        if own:
            found[file.owner, f"{own}, its own copy {file.relative}"] = None
        else:
            for marker, library in (("openblas", "OpenBLAS"), ("mkl", "MKL")):
                if native.markers.get(marker, "imported") != "imported":
                    found[file.owner, f"{library}, linked into {file.relative}"] = None
    return tuple(Blas(owner, library) for owner, library in sorted(found))


def protobuf_exports(scan: Scan) -> tuple[ProtobufExport, ...]:
    """The distributions whose protobuf lock takes part in macOS's merging of weak symbols."""
    if scan.os != "macos":
        return ()
    exporting: dict[str, list[OwnedFile]] = {}
    for file in scan.files:
        if file.native.markers.get("protobuf-shutdown") == "weak":
            exporting.setdefault(file.owner, []).append(file)
    return tuple(
        ProtobufExport(
            owner,
            tuple(sorted((file.relative for file in files), key=lambda path: (path.count("/"), path))),
            "old" if any("protobuf-21" in file.native.markers for file in files) else "new",
        )
        for owner, files in sorted(exporting.items())
    )


def _is_link(file: OwnedFile) -> bool:
    return Path(file.native.path).is_symlink()


def _blas_kind(name: str) -> str | None:
    leaf = name.rsplit("/", 1)[-1]
    for library, pattern in _BLAS_NAMES:
        if re.fullmatch(pattern, leaf, re.IGNORECASE):
            return library
    return None


def _loaders(scan: Scan) -> Mapping[tuple[str, str], list[OwnedFile]]:
    """For each file of a distribution, by its leaf name, those of the same distribution that need it."""
    loaders: dict[tuple[str, str], list[OwnedFile]] = {}
    for file in scan.files:
        for reference in file.native.needed:
            loaders.setdefault((file.owner, reference.rsplit("/", 1)[-1]), []).append(file)
    return loaders


def _search_folders(file: OwnedFile, loaders: Mapping[tuple[str, str], list[OwnedFile]]) -> tuple[str, ...]:
    """The folders of `@rpath`: the file's own rpaths, then, on macOS, those of its loaders."""
    folders: dict[str, None] = {}
    seen, waiting = {file.native.path}, [file]
    while waiting:
        current = waiting.pop(0)
        here = current.native.path.replace("\\", "/").rpartition("/")[0]
        for rpath in current.native.rpaths:
            if not rpath.startswith("@executable_path"):
                folders[os.path.normpath(_expand(rpath, here))] = None
        if current.native.format != "mach-o":
            break
        for loader in loaders.get((current.owner, current.native.leaf), ()):
            if loader.native.path not in seen:
                seen.add(loader.native.path)
                waiting.append(loader)
    return tuple(folders)


def _expand(rpath: str, here: str) -> str:
    return rpath.replace("@loader_path", here).replace("${ORIGIN}", here).replace("$ORIGIN", here)
