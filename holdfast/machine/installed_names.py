"""Looks a name up in the files of an installed package, and who asks for which version of it. Nothing is imported.

An error names what is missing: `cannot import name 'X' from 'lib'`, or an argument that a class rejects. The package's
own files say whether the name is there under another spelling, and whether a note says when it went.
"""

import os
import re
from collections.abc import Iterable, Iterator
from difflib import get_close_matches
from pathlib import Path

from holdfast.core.evidence import InstalledName, Pin
from holdfast.core.facts import meets
from holdfast.machine.libraries import canonical, read_distributions, read_requirements

# Where the name to import is not the name to install.
_DISTRIBUTIONS = {
    "sklearn": "scikit-learn",
    "PIL": "pillow",
    "cv2": "opencv-python",
    "yaml": "pyyaml",
    "google": "protobuf",
    "skimage": "scikit-image",
}
_FROM_PACKAGES = re.compile(r"^(?P<folder>.*?[/\\](?:site|dist)-packages)[/\\]")
_NOTE = r"[^\n]{{0,160}}\b{name}\b[^\n]{{0,160}}"
_GONE = re.compile(r"(?i)deprecat|remov|renam|replac|no longer|use .{1,40} instead")
_VERSION = re.compile(r"\bv?(\d+\.\d+(?:\.\d+)?)\b")
_REQUIREMENT = re.compile(
    r"^\s*[\"']?(?P<name>[A-Za-z][\w.-]*)(?:\[[^\]]*\])?\s*(?P<spec>(?:[=<>!~]=?=?\s*[\w.*+]+\s*,?\s*)+)"
)
_PIN_FILES = ("requirements*.txt", "requirements/*.txt", "pyproject.toml", "setup.py", "setup.cfg", "environment*.y*ml")
_MOST_BYTES = 120_000_000  # of source files; the largest package has a third of it
_MOST_PINS = 4


def packages_folder(paths: Iterable[str]) -> Path | None:
    """The site-packages folder that paths in a traceback name, if it exists on this machine."""
    for path in paths:
        if (match := _FROM_PACKAGES.match(path)) and (folder := Path(match["folder"])).is_dir():
            return folder
    return None


def look_up(packages: Path, owner: str, name: str, program: Path | None = None) -> InstalledName | None:
    """What the installed package has of a name; None if no installed package has the owner.

    `owner` is a module ("transformers.trainer") or a class ("TrainingArguments"), `program` the folder of the script.
    """
    installed = read_distributions([packages]).versions
    top = owner.partition(".")[0]
    package = packages / top
    if not package.is_dir():
        package = next(iter(_packages_with_class(packages, owner, installed)), package)
    distribution = _DISTRIBUTIONS.get(package.name, canonical(package.name))
    if not package.is_dir() or distribution not in installed:
        return None
    wanted = name.rpartition(".")[2] if name.startswith(f"{package.name}.") else name
    text = _text_of(package, owner, wanted)
    words = sorted(set(re.findall(r"[A-Za-z_]\w{2,}", text)))
    version = installed[distribution]
    return InstalledName(
        library=distribution,
        version=version,
        folder=str(package),
        name=wanted,
        has_name=wanted in words,
        near=tuple(get_close_matches(wanted, [word for word in words if word != wanted], n=3, cutoff=0.7)),
        gone_since=_version_of_note(package, wanted),
        pins=tuple(_pins(packages, distribution, version, program))[:_MOST_PINS],
    )


def _text_of(package: Path, owner: str, name: str) -> str:
    """The source that should have the name: the module, or the file that defines the class."""
    module = package.parent.joinpath(*owner.split("."))
    for file in (module / "__init__.py", module.with_suffix(".py")):
        if file.is_file():
            children = " ".join(child.stem for child in file.parent.iterdir()) if file.name == "__init__.py" else ""
            return f"{_read(file)} {children}"
    defines = re.compile(rf"^class {re.escape(owner)}\b", re.MULTILINE)
    return next((text for _, text in _sources(package, f"class {owner}") if defines.search(text)), "")


def _packages_with_class(packages: Path, owner: str, installed: Iterable[str]) -> Iterator[Path]:
    """The packages that define a class; only those that training programs use, because it takes a while."""
    names = ("transformers", "trl", "peft", "accelerate", "datasets", "diffusers", "lightning", "sentence_transformers")
    defines = re.compile(rf"^class {re.escape(owner)}\b", re.MULTILINE)
    for name in names:
        is_installed = canonical(name) in installed and (packages / name).is_dir()
        if is_installed and any(defines.search(text) for _, text in _sources(packages / name, f"class {owner}")):
            yield packages / name


def _version_of_note(package: Path, name: str) -> str:
    """The version in which a name went or goes, if a comment or message in the package says so."""
    pattern = re.compile(_NOTE.format(name=re.escape(name)))
    for _, text in _sources(package, name):
        for match in pattern.finditer(text):
            if _GONE.search(match[0]) and (version := _VERSION.search(match[0])):
                return version[1]
    return ""


def _sources(package: Path, needle: str) -> Iterator[tuple[Path, str]]:
    """The source files of a package that contain some text."""
    sought, seen_bytes = needle.encode(), 0
    for folder, _, files in os.walk(package):
        for file in files:
            if file.endswith(".py"):
                path = Path(folder, file)
                try:
                    raw = path.read_bytes()
                except OSError:
                    continue
                seen_bytes += len(raw)
                if sought in raw:
                    yield path, raw.decode("utf-8", "replace")
        if seen_bytes > _MOST_BYTES:
            return


def _pins(packages: Path, distribution: str, version: str, program: Path | None) -> Iterator[Pin]:
    """What the program's own files and the other packages ask for; only the latter's unmet ones."""
    if program and program.is_dir():
        for pattern in _PIN_FILES:
            for file in sorted(program.glob(pattern)):
                for number, line in enumerate(_read(file).splitlines(), start=1):
                    match = _REQUIREMENT.match(line)
                    if match and canonical(match["name"]) == distribution:
                        spec = match["spec"].replace(" ", "").rstrip(",")
                        yield Pin(f"{file.name}:{number}", f"{distribution}{spec}", meets(version, spec))
    for needed in read_requirements([packages]):
        if needed.name == distribution and not meets(version, needed.specifier):
            yield Pin(f"{needed.by} {needed.by_version}", f"{distribution}{needed.specifier}", False)


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
