"""Installed distributions and the torch build, read from the files of any folder. Nothing is imported.

Metadata is read leniently, since a broken installation is what `doctor` is for: a folder without METADATA is named by
its folder name, and a distribution that is recorded twice is reported.
"""

import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from holdfast.core.facts import Answer, Requirement, TorchBuild, meets
from holdfast.machine.commands import Unanswerable

_HEAD_BYTES = 16384  # name and version are in the first lines; a description may have megabytes
_REQUIRES = re.compile(
    r"^Requires-Dist:[ \t]*([A-Za-z][\w.-]*)(?:\[[^\]]*\])?[ \t]*\(?([^;()\n]*)\)?[ \t]*(?:;(.*))?$", re.MULTILINE
)
_METAL_GRAPH = b"MetalPerformanceShadersGraph"


@dataclass(slots=True)
class Installed:
    """The distributions of some folders, and oddities in their records."""

    versions: dict[str, str] = field(default_factory=dict)  # canonical name -> version
    oddities: list[str] = field(default_factory=list)


def probe_torch() -> Answer[TorchBuild | None]:
    """What the torch of this Python was built for."""
    for folder in import_folders():
        if (folder / "torch").is_dir():
            return Answer(read_torch_build(folder / "torch"), str(folder / "torch" / "version.py"))
    return Answer(None, "no folder of sys.path contains torch")


def import_folders() -> list[Path]:
    """The folders that this Python imports from, in order, without archives and the current folder."""
    folders = [Path(entry) for entry in sys.path if entry]
    return [folder for folder in dict.fromkeys(folders) if folder.is_dir()]


def read_distributions(folders: Iterable[Path]) -> Installed:
    """Read the records of every distribution; the first on the path is the one imported."""
    found = Installed()
    leftovers: list[str] = []
    for folder in folders:
        here: dict[str, list[str]] = {}
        for record in _records(folder):
            try:
                name, version = _name_and_version(record)
            except OSError as error:
                found.oddities.append(f"{record.name}: {error.strerror or error}")
                continue
            if name.startswith("~"):  # pip's name for what it was about to remove
                leftovers.append(record.name)
                continue
            if not version:
                found.oddities.append(f"{record.name}: no version is recorded")
            here.setdefault(canonical(name), []).append(version)
        for name, versions in here.items():
            if len(set(versions)) > 1:
                found.oddities.append(f"{name} is recorded in several versions: {', '.join(sorted(set(versions)))}")
            found.versions.setdefault(name, versions[-1])
    for leftover in leftovers:
        rest = canonical(leftover.partition("-")[0].lstrip("~"))
        if not any(name.endswith(rest) for name in found.versions):
            found.oddities.append(f"{leftover}: left over from an interrupted uninstall, with no later version")
    return found


def read_requirements(folders: Iterable[Path]) -> Iterator[Requirement]:
    """What the distributions of some folders need, without what only an extra or another system needs."""
    for folder in folders:
        for record in _records(folder):
            try:
                by, by_version = _name_and_version(record)
                head = _head(record / "METADATA")
            except OSError:
                continue
            for name, specifier, marker in _REQUIRES.findall(head):
                if not marker.strip():
                    yield Requirement(canonical(by), by_version, canonical(name), specifier.replace(" ", ""))


def unmet_requirements(folders: Iterable[Path], versions: Mapping[str, str]) -> tuple[Requirement, ...]:
    """The requirements that the installed versions do not satisfy."""
    return tuple(
        needed
        for needed in read_requirements(folders)
        if needed.name in versions and not meets(versions[needed.name], needed.specifier)
    )


def canonical(name: str) -> str:
    """Write a distribution's name as indexes do: lower case, one dash for any run of `-_.`."""
    return re.sub(r"[-_.]+", "-", name).lower()


def read_torch_build(folder: Path) -> TorchBuild:
    """Read torch's version file and, on a Mac, the first page of its library."""
    try:
        text = (folder / "version.py").read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise Unanswerable(f"torch is installed but its version.py cannot be read: {error.strerror or error}") from None
    values = dict(re.findall(r"^(\w+)\s*(?::[^=\n]+)?=\s*['\"]([^'\"]*)['\"]", text, re.MULTILINE))
    if "__version__" not in values:
        raise Unanswerable(f"{folder / 'version.py'} names no version")
    return TorchBuild(
        version=values["__version__"],
        cuda=values.get("cuda") or None,
        rocm=values.get("hip") or None,
        mps=_links_metal(folder / "lib" / "libtorch_cpu.dylib"),
    )


def _records(folder: Path) -> Iterator[Path]:
    with os.scandir(folder) as entries:
        names = sorted(entry.name for entry in entries)
    yield from (folder / name for name in names if name.endswith((".dist-info", ".egg-info")))


def _name_and_version(record: Path) -> tuple[str, str]:
    """Name and version from the metadata, or from the record's file name without metadata."""
    stem = record.name.removesuffix(".dist-info").removesuffix(".egg-info")
    name, _, version = stem.partition("-")
    version = version.split("-py")[0]  # an egg's name ends with its Python version
    for file in (record / "METADATA", record / "PKG-INFO", record):
        if file.is_file():
            fields = dict(re.findall(r"^(Name|Version):[ \t]*(\S+)", _head(file), re.MULTILINE))
            return fields.get("Name", name), fields.get("Version", version)
    return name, version


def _head(file: Path) -> str:
    """The fields of a metadata file, without the description."""
    with file.open("rb") as stream:
        return stream.read(_HEAD_BYTES).decode("utf-8", errors="replace").partition("\n\n")[0]


def _links_metal(library: Path) -> bool:
    """Whether a Mac build links Metal's graph library, which is what MPS is made of. Load commands come first."""
    if not library.is_file():
        return False
    with library.open("rb") as file:
        return _METAL_GRAPH in file.read(1 << 16)
