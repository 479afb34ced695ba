"""Finds the files of a dataset: one file, a folder with a file for each split, an archive of either, and other folders.

A folder may be a BEIR folder, one that the `datasets` library saved, or have a subfolder for each class.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from holdfast.core.data_warnings import DataWarning, data_warning
from holdfast.core.errors import RequestError, type_command
from holdfast.core.facts import SPLITS
from holdfast.core.progress import Progress, no_progress
from holdfast.data.archives import is_archive, unpack
from holdfast.data.class_folder import NO_CLASS, classes_in, empty_classes, other_files
from holdfast.data.data_request import DEFAULT_SHARE, DataRequest
from holdfast.data.names import SPLIT_VALUES
from holdfast.data.rawfile import check_is_file
from holdfast.data.saved_dataset import is_saved_dataset, saved_splits

_ENDINGS = (
    ".csv", ".tsv", ".tab", ".json", ".jsonl", ".ndjson", ".parquet", ".pq", ".arrow", ".xlsx", ".xls", ".npz", ".txt",
)  # fmt: skip
_NOT_DATA = ("readme", "license", "licence", "labels", "classes", "requirements", "dataset_info", "dataset_infos")
_SHARD = re.compile(r"[-_.]\d{3,}(-of-\d+)?$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Files:
    """Which files make up a dataset; a folder with a subfolder for each class counts as one."""

    splits: Mapping[str, tuple[Path, ...]]  # "train" and, where given, "validation" and "test"
    beir: Path | None = None
    archive: Path | None = None  # they were unpacked from
    neighbors: tuple[str, ...] = ()  # splits that were not requested but found next to the training file
    warnings: tuple[DataWarning, ...] = ()


def find_files(request: DataRequest, on_progress: Progress = no_progress) -> Files:
    """Which files are read for which split."""
    path = request.path
    if path.is_dir():
        found = _in_folder(path)
    else:
        check_is_file(path)
        if is_archive(path):
            found = replace(_in_folder(unpack(path, on_progress), archive=path), archive=path)
        else:
            neighbors = _neighbors(request)
            found = Files(splits={"train": (path,), **neighbors}, neighbors=tuple(neighbors))
    if request.negatives:
        check_is_file(request.negatives)
    given = {"validation": request.validation, "test": request.test}
    others = {split: _files_of_split(split, path, on_progress) for split, path in given.items() if path}
    return replace(found, splits={**found.splits, **others})


def beir_file(folder: Path, name: str) -> Path | None:
    """The file with this name in a BEIR folder, gzipped or not."""
    candidates = (folder / f"{name}{ending}" for ending in (".jsonl", ".jsonl.gz", ".json"))
    return next((path for path in candidates if path.is_file()), None)


def split_in_name(path: Path) -> tuple[str, str]:
    """The split named by a file, and the rest of its name: `sentences_train.csv` is ("train", "sentences")."""
    stem = _stem(path).lower()
    if stem in SPLIT_VALUES:
        return SPLIT_VALUES[stem], ""
    parts = re.split(r"[-_. ]", stem)
    for at in (len(parts) - 1, 0):
        if parts[at] in SPLIT_VALUES:
            return SPLIT_VALUES[parts[at]], "_".join(parts[:at] + parts[at + 1 :])
    return "", stem


def _files_of_split(split: str, path: Path, on_progress: Progress) -> tuple[Path, ...]:
    """The files given for validation or test: a file, an archive with one, or a folder of classes."""
    if path.is_dir() and classes_in(path):
        return (path,)
    check_is_file(path)
    if not is_archive(path):
        return (path,)
    found = _in_folder(unpack(path, on_progress), archive=path)
    if found.beir or set(found.splits) != {"train"}:
        raise RequestError(
            f"{path.name} has several splits, so it cannot be the {split} split",
            found=", ".join(found.splits) or "a BEIR folder",
            try_next=("give the file of one split",),
            setting=split,
        )
    return found.splits["train"]


def _in_folder(folder: Path, archive: Path | None = None) -> Files:
    shown = archive.name if archive else str(folder)
    try:
        folder = _descended(folder)
        if beir_file(folder, "corpus") and beir_file(folder, "queries"):
            return Files(splits={}, beir=folder)
        if is_saved_dataset(folder):
            splits, others = saved_splits(folder)
            return Files(splits=splits, warnings=(data_warning("unread-files", files=others),) if others else ())
        if found := _class_splits(folder) or _split_folders(folder):
            return found
        files = sorted(_data_files(folder)) or (_only_file(folder) if archive else [])
    except PermissionError as error:
        raise RequestError(f"no permission to read the folder {folder}", found=str(error)) from error
    if not files and (others := other_files(folder)):
        raise RequestError(
            f"{shown} looks like a folder for each class, but not all of its files are texts",
            found=", ".join(others[:5]) + (f" and {len(others) - 5:,} more" if len(others) > 5 else ""),
            try_next=("leave only text files (.txt or .md) in the subfolders of the classes",),
        )
    if not files:
        raise RequestError(
            f"{shown} has no data file" if archive else f"the folder {shown} has no data file",
            found=", ".join(sorted(entry.name for entry in folder.iterdir())[:10]) or "an empty folder",
            try_next=(
                f"use a file, or a folder with train.csv (or {', '.join(_ENDINGS[1:8])})",
                "or a folder with a subfolder of text files for each class",
            ),
        )
    if len(files) == 1:
        return Files(splits={"train": (files[0],)})
    families: dict[str, dict[str, list[Path]]] = {}
    for path in files:
        split, rest = split_in_name(path)
        if split:
            families.setdefault(rest, {}).setdefault(split, []).append(path)
    whole = {rest: family for rest, family in families.items() if "train" in family}
    chosen = "" if "" in whole else next(iter(whole)) if len(whole) == 1 else None
    if chosen is None:
        advice = () if archive else (type_command(f"holdfast survey {files[0]}"),)
        raise RequestError(
            f"it is unclear which file in {shown} is for training",
            found=", ".join(path.name for path in files[:12]),
            try_next=("name the files train, validation and test", *advice),
        )
    splits = {split: tuple(whole[chosen][split]) for split in SPLITS if split in whole[chosen]}
    return Files(splits=splits, warnings=_unread(files, splits))


def _unread(files: list[Path], splits: Mapping[str, tuple[Path, ...]]) -> tuple[DataWarning, ...]:
    unread = tuple(path.name for path in files if not any(path in read for read in splits.values()))
    return (data_warning("unread-files", files=unread),) if unread else ()


def _descended(folder: Path) -> Path:
    """The only subfolder of a folder that has nothing else to read, as archives often have; else the folder itself."""
    while True:
        inner = [entry for entry in folder.iterdir() if entry.is_dir() and not entry.name.startswith((".", "__"))]
        if len(inner) != 1 or inner[0].name == "data" or any(_data_files(folder)) or is_saved_dataset(folder):
            return folder
        folder = inner[0]


def _class_splits(folder: Path) -> Files | None:
    """A folder with a subfolder for each class, or with such a folder for each split."""
    if classes_in(folder):
        return Files(splits={"train": (folder,)}, warnings=_unlabeled(folder))
    splits: dict[str, tuple[Path, ...]] = {}
    warnings: tuple[DataWarning, ...] = ()
    for entry in sorted(folder.iterdir()):
        split = SPLIT_VALUES.get(entry.name.lower()) if entry.is_dir() else None
        if split and classes_in(entry):
            splits[split] = (entry,)
            warnings += _unlabeled(entry)
    if "train" not in splits:
        return None
    return Files(splits={split: splits[split] for split in SPLITS if split in splits}, warnings=warnings)


def _unlabeled(folder: Path) -> tuple[DataWarning, ...]:
    unlabeled = [name for name in NO_CLASS if (folder / name).is_dir()]
    found = tuple(f"{folder.name}/{name}" for name in (*unlabeled, *empty_classes(folder)))
    return (data_warning("unread-files", files=found),) if found else ()


def _split_folders(folder: Path) -> Files | None:
    """A folder with the subfolders train and test, each with files of rows."""
    splits: dict[str, tuple[Path, ...]] = {}
    for entry in sorted(folder.iterdir()):
        split = SPLIT_VALUES.get(entry.name.lower()) if entry.is_dir() else None
        if split and (files := tuple(sorted(_data_files(entry)))):
            splits[split] = files
    if "train" not in splits:
        return None
    ordered = {split: splits[split] for split in SPLITS if split in splits}
    return Files(splits=ordered, warnings=_unread(sorted(_data_files(folder)), ordered))


def _only_file(folder: Path) -> list[Path]:
    """The only file of an archive apart from notes about it, whatever its name."""
    files = [path for path in folder.iterdir() if path.is_file() and not path.name.lower().startswith(_NOT_DATA)]
    return files if len(files) == 1 else []


def _data_files(folder: Path) -> Iterator[Path]:
    for place in (folder, folder / "data"):
        if not place.is_dir():
            continue
        for path in place.iterdir():
            name = path.name.lower().removesuffix(".gz")
            is_data = name.endswith(_ENDINGS) and not name.startswith((".", *_NOT_DATA))
            if is_data and path.is_file():
                yield path


def _neighbors(request: DataRequest) -> dict[str, tuple[Path, ...]]:
    """The validation and test files next to train.csv; none where the request says anything about splits."""
    split, rest = split_in_name(request.path)
    shares = (request.validation_share, request.test_share)
    if (
        request.folds
        or split != "train"
        or request.validation
        or request.test
        or shares != (DEFAULT_SHARE, DEFAULT_SHARE)
    ):
        return {}
    try:
        siblings = sorted(_data_files(request.path.parent))
    except OSError:
        return {}
    found: dict[str, tuple[Path, ...]] = {}
    for path in siblings:
        other, its_rest = split_in_name(path)
        is_alike = its_rest == rest and _ending(path) == _ending(request.path)
        if is_alike and other in ("validation", "test") and path.parent == request.path.parent:
            found[other] = (*found.get(other, ()), path)
    return {name: found[name] for name in SPLITS if name in found}


def _ending(path: Path) -> str:
    return Path(path.name.lower().removesuffix(".gz")).suffix


def _stem(path: Path) -> str:
    name = path.name
    for ending in (".gz", *_ENDINGS):
        name = name[: -len(ending)] if name.lower().endswith(ending) else name
    return _SHARD.sub("", name)
