"""Simulates how macOS, Linux and Windows decide which OpenMP copy answers a request, import after import.

The rules are those of Apple's published dyld source (tag dyld-1378), glibc's ld.so, and Windows' rule that a loaded
module of the same name answers. Nothing is loaded: files are only read.
"""

import os
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from holdfast.machine.native.binary import NativeFile, is_file
from holdfast.machine.native.reader import read_native
from holdfast.machine.native.runtimes import Kind, OpenmpRequest, runtime_kind
from holdfast.machine.native.scan import Scan
from holdfast.machine.native.site_packages import prefix_of

SYSTEMS = ("macos", "linux", "windows")
HOST_SYSTEM = {"darwin": "macos", "win32": "windows"}.get(sys.platform, "linux")
_HOMEBREW = {"arm64": "/opt/homebrew/opt/libomp/lib", "x86_64": "/usr/local/opt/libomp/lib"}
_LINUX_LIBGOMP = ("libgomp.so.1", "libgomp.so.1.0.0")  # one file; its soname is the first


@dataclass(frozen=True, slots=True)
class LibraryCopy:
    """One copy of an OpenMP runtime that can be loaded."""

    key: tuple[str, int, int]  # the same for one file reached by two paths
    path: str
    shown: str
    kind: Kind
    name: str  # install name or soname
    merges: bool
    owner: str  # the distribution that carries it, or "Homebrew", "the system"


@dataclass(frozen=True, slots=True)
class Reply:
    """The copy that answered a request, and the rule."""

    request: OpenmpRequest
    copy: LibraryCopy | None  # None: nothing answers
    how: str


@dataclass(slots=True)
class Process:
    """The OpenMP copies that a process has loaded so far, with every name each answers to."""

    copies: list[LibraryCopy] = field(default_factory=list)
    names: list[set[str]] = field(default_factory=list)
    replies: list[Reply] = field(default_factory=list)

    def named(self, *wanted: str) -> LibraryCopy | None:
        """A loaded copy that answers to one of the names."""
        for copy, names in zip(self.copies, self.names, strict=True):
            if names.intersection(wanted):
                return copy
        return None

    def take(self, copy: LibraryCopy, *names: str) -> tuple[LibraryCopy, bool]:
        """Load a copy unless the same file is already loaded; returns whether it was."""
        for index, loaded in enumerate(self.copies):
            if loaded.key == copy.key:
                self.names[index].update(names)
                return loaded, True
        self.copies.append(copy)
        self.names.append({copy.path, copy.name, *names} - {""})
        return copy, False


class LibraryFinder:
    """The copies that can be found at a path: those in the folders, and the system's by name."""

    def __init__(self, scan: Scan, homebrew: bool | None):
        self.os = scan.os
        self._homebrew = homebrew
        self._homebrew_folder = _HOMEBREW.get(scan.arch, _HOMEBREW["arm64"])
        self._files = {os.path.normpath(file.native.path): file for file in scan.files}
        self._places = tuple(f"{prefix_of(Path(root))}{os.sep}" for root in scan.roots)
        self._arch = scan.arch
        self._read: dict[str, LibraryCopy | None] = {}

    def at(self, path: str) -> LibraryCopy | None:
        """The copy at a path, or None."""
        path = os.path.normpath(path)
        if path not in self._read:
            self._read[path] = self._look(path)
        return self._read[path]

    def beside(self, owner: str, leaf: str) -> Iterable[str]:
        """Files of one distribution with this name, in any of its folders."""
        return [
            path
            for path, file in self._files.items()
            if file.owner == owner and file.native.leaf.lower() == leaf.lower()
        ]

    def of_system(self, reference: str, kind: Kind) -> LibraryCopy | None:
        """The system's own copy: libgomp on Linux and vcomp on Windows are assumed to exist."""
        leaf = reference.replace("\\", "/").rsplit("/", 1)[-1]
        if self.os == "linux" and leaf in _LINUX_LIBGOMP:
            return LibraryCopy(
                ("system libgomp", 0, 0), leaf, "the system's libgomp", kind, _LINUX_LIBGOMP[0], False, "the system"
            )
        if self.os == "windows" and kind == "vcomp":
            name = leaf.lower()
            return LibraryCopy((f"system {name}", 0, 0), name, f"the system's {name}", kind, name, False, "the system")
        return None

    def _look(self, path: str) -> LibraryCopy | None:
        is_homebrew = self.os == "macos" and path.startswith(tuple(folder + "/" for folder in _HOMEBREW.values()))
        if is_homebrew and self._homebrew is False:
            return None
        can_see = self.os == HOST_SYSTEM or path.startswith(self._places) or path in self._files
        if can_see and is_file(path):
            return self._from_file(path, "Homebrew" if is_homebrew else "the system")
        if self._homebrew and path.startswith(self._homebrew_folder + "/"):
            # Not read here; the copy of it that torch 2.7 to 2.10 carry has the weak functions.
            return LibraryCopy(("homebrew libomp", 0, 0), path, "Homebrew's libomp", "libomp", path, True, "Homebrew")
        return None

    def _from_file(self, path: str, otherwise: str) -> LibraryCopy | None:
        known = self._files.get(path)
        native = known.native if known else read_native(path, prefer=self._arch)
        if not isinstance(native, NativeFile):
            return None
        found = Path(path).stat()
        real = self._files.get(os.path.realpath(path), known)
        return LibraryCopy(
            ("file", found.st_dev, found.st_ino),
            path,
            real.relative if real else path,
            runtime_kind(native) or "libomp",
            native.name,
            native.markers.get("kmp-suspend") == "weak",
            real.owner if real else otherwise,
        )


def has_homebrew_libomp(arch: str) -> bool:
    """True when this Mac has Homebrew's libomp for an architecture."""
    return Path(_HOMEBREW.get(arch, _HOMEBREW["arm64"]), "libomp.dylib").is_file()


def simulate(scan: Scan, finder: LibraryFinder, requests: Iterable[OpenmpRequest]) -> Process:
    """Answer requests in order, as one process would, and keep what is loaded."""
    answer = _RULES[scan.os]
    process = Process()
    for request in requests:
        process.replies.append(answer(request, process, finder))
    return process


def _dyld(request: OpenmpRequest, process: Process, finder: LibraryFinder) -> Reply:
    if request.reference.startswith("@rpath/"):
        loaded = process.named(request.reference)
        if loaded:
            return Reply(request, loaded, f"its install name is {request.reference}, the name that was requested")
    for candidate in _dyld_candidates(request):
        loaded = process.named(candidate)
        if loaded:
            how = "it is already loaded" if loaded.path == candidate else f"its install name is {candidate}"
            return Reply(request, loaded, how)
        found = finder.at(candidate)
        if found:
            copy, was_loaded = process.take(found, candidate)
            return Reply(request, copy, "a link leads to the same file" if was_loaded else "loaded")
    return Reply(request, None, f"nothing was found for {request.reference}")


def _dyld_candidates(request: OpenmpRequest) -> Iterable[str]:
    reference = request.reference
    if reference.startswith("@rpath/"):
        return [os.path.normpath(f"{folder}/{reference[7:]}") for folder in request.search]
    if reference.startswith("@loader_path/"):
        return [os.path.normpath(f"{_folder(request.path)}/{reference[13:]}")]
    return [os.path.normpath(reference)] if reference.startswith("/") else []


def _ldso(request: OpenmpRequest, process: Process, finder: LibraryFinder) -> Reply:
    loaded = process.named(request.reference)
    if loaded:
        return Reply(request, loaded, f"it answers to the same soname, {request.reference}")
    if "/" in request.reference:
        candidates = [request.reference]
    else:
        candidates = [f"{folder}/{request.reference}" for folder in request.search]
    for candidate in candidates:
        found = finder.at(candidate)
        if found:
            copy, was_loaded = process.take(found, request.reference)
            return Reply(request, copy, "a link leads to the same file" if was_loaded else "loaded")
    found = finder.of_system(request.reference, request.kind)
    if found:
        copy, was_loaded = process.take(found, request.reference)
        return Reply(request, copy, "it is the system's copy" if was_loaded else "loaded")
    return Reply(request, None, f"nothing was found for {request.reference}")


def _windows(request: OpenmpRequest, process: Process, finder: LibraryFinder) -> Reply:
    leaf = request.reference.replace("\\", "/").rsplit("/", 1)[-1]
    loaded = process.named(leaf.lower())
    if loaded:
        return Reply(request, loaded, f"a module named {leaf} is already loaded")
    beside = [f"{_folder(request.path)}/{leaf}", *finder.beside(request.owner, leaf)]
    for candidate in (request.reference, *beside) if request.reference == request.path else beside:
        found = finder.at(candidate)
        if found:
            copy, _ = process.take(found, leaf.lower())
            return Reply(request, copy, "loaded")
    found = finder.of_system(leaf, request.kind)
    if found:
        copy, _ = process.take(found, leaf.lower())
        return Reply(request, copy, "loaded")
    return Reply(request, None, f"nothing was found for {leaf}")


def _folder(path: str) -> str:
    return path.replace("\\", "/").rpartition("/")[0]


_RULES: dict[str, Callable[[OpenmpRequest, Process, LibraryFinder], Reply]] = {
    "macos": _dyld,
    "linux": _ldso,
    "windows": _windows,
}
