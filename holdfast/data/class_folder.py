"""A folder with one subfolder for each class, and a text file for each row."""

import hashlib
from collections.abc import Iterator
from pathlib import Path

from holdfast.core.errors import RequestError
from holdfast.core.plan import Choice
from holdfast.core.progress import Progress, no_progress
from holdfast.data.badrows import BadRows
from holdfast.data.csvrows import Row
from holdfast.data.magic import looks_like_text
from holdfast.data.rawfile import LINE_CHARACTERS, RawFile, reading

COLUMNS = ("text", "label", "file")
_TEXT_ENDINGS = (".txt", ".text", ".md", "")
NO_CLASS = ("unsup", "unlabeled", "unlabelled")  # subfolders of texts without a label
_EVERY_FILES = 500


def classes_in(folder: Path) -> tuple[str, ...]:
    """The subfolders that are classes, because each has text files and nothing else; none in any other folder.

    Empty subfolders do not count.
    """
    found = [entry for entry in _subfolders(folder) if not _is_empty(entry)]
    has_texts = all(any(_texts(entry)) and not any(_others(entry)) for entry in found)
    return tuple(entry.name for entry in found) if len(found) > 1 and has_texts else ()


def empty_classes(folder: Path) -> tuple[str, ...]:
    """The subfolders of a folder of classes that have no files."""
    return tuple(entry.name for entry in _subfolders(folder) if _is_empty(entry))


def other_files(folder: Path) -> tuple[str, ...]:
    """What keeps a folder from being read as a folder of classes although several subfolders have text files."""
    found = _subfolders(folder)
    if sum(any(_texts(entry)) for entry in found) < 2:
        return ()
    return tuple(str(path.relative_to(folder)) for entry in found for path in sorted(_others(entry)))


def look_at_classes(folder: Path, on_progress: Progress = no_progress) -> RawFile:
    """Read the files of all classes through once, for their size and fingerprint."""
    digest, size = hashlib.sha256(), 0
    for number, path in enumerate(_files(folder)):
        with reading(path):
            content = path.read_bytes()
        digest.update(f"{path.relative_to(folder)}\0{len(content)}\0".encode())
        digest.update(content)
        size += len(content)
        if number % _EVERY_FILES == 0:
            on_progress(f"reading the files of {folder.name}", number, None)
    if not size:
        raise RequestError(f"the files of {folder} are empty", found="0 bytes")
    return RawFile(
        path=folder,
        size_bytes=size,
        sha256=digest.hexdigest(),
        is_gzip=False,
        head=b"",
        binary="classes",
        encoding=Choice("utf-8", "otherwise Windows-1252, decided for each file"),
    )


def class_rows(raw: RawFile, bad: BadRows) -> Iterator[Row]:
    """Read each file as a row; its number is its place in the order of the names."""
    for number, path in enumerate(_files(raw.path), start=1):
        with reading(path):
            content = path.read_bytes()
        if len(content) > LINE_CHARACTERS or not looks_like_text(content[:65_536]):
            bad.add(path, number, "not-text", column="text", details={"found": "binary data"})
            continue
        try:
            text = content.decode("utf-8-sig")
        except UnicodeDecodeError:
            text = content.decode("cp1252", "replace")
        yield number, {"text": text, "label": path.parent.name, "file": str(path.relative_to(raw.path))}


def _files(folder: Path) -> Iterator[Path]:
    for name in classes_in(folder):
        yield from sorted(_texts(folder / name))


def _texts(folder: Path) -> Iterator[Path]:
    for path in folder.iterdir():
        if path.suffix.lower() in _TEXT_ENDINGS and not path.name.startswith(".") and path.is_file():
            yield path


def _others(folder: Path) -> Iterator[Path]:
    for path in folder.iterdir():
        if not path.name.startswith(".") and (path.is_dir() or path.suffix.lower() not in _TEXT_ENDINGS):
            yield path


def _subfolders(folder: Path) -> list[Path]:
    found = [entry for entry in sorted(folder.iterdir()) if entry.is_dir() and not entry.name.startswith((".", "_"))]
    return [entry for entry in found if entry.name.lower() not in NO_CLASS]


def _is_empty(folder: Path) -> bool:
    return all(path.name.startswith(".") for path in folder.iterdir())
