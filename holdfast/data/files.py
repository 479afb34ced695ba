"""Finds out what the path a user gave stands for: one file, a folder with a file for each split, or a BEIR folder."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from holdfast.core.errors import RequestError
from holdfast.data.data_request import DataRequest
from holdfast.data.names import SPLIT_VALUES
from holdfast.data.rawfile import check_is_file

SPLITS = ("train", "validation", "test")
_ENDINGS = (
    ".csv", ".tsv", ".tab", ".json", ".jsonl", ".ndjson", ".parquet", ".pq", ".xlsx", ".xls", ".npz", ".txt",
)  # fmt: skip
_NOT_DATA = ("readme", "license", "licence", "labels", "classes", "requirements", "dataset_info", "dataset_infos")
_SHARD = re.compile(r"[-_.]\d{3,}(-of-\d+)?$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Files:
    """Which files make up a dataset."""

    splits: Mapping[str, tuple[Path, ...]]  # "train" and, where given, "validation" and "test"
    beir: Path | None = None
    warnings: tuple[str, ...] = ()


def find_files(request: DataRequest) -> Files:
    """Say which files are read for which split."""
    path = request.path
    if not path.is_dir():
        check_is_file(path)
        found = Files(splits={"train": (path,)}, warnings=_unread_neighbours(request))
    elif beir_file(path, "corpus") and beir_file(path, "queries"):
        found = Files(splits={}, beir=path)
    else:
        found = _in_folder(path)
    if request.negatives:
        check_is_file(request.negatives)
    splits = dict(found.splits)
    for split, given in (("validation", request.validation), ("test", request.test)):
        if given:
            check_is_file(given)
            splits[split] = (given,)
    return Files(splits=splits, beir=found.beir, warnings=found.warnings)


def beir_file(folder: Path, name: str) -> Path | None:
    """The file of a BEIR folder that has this name, gzipped or not."""
    candidates = (folder / f"{name}{ending}" for ending in (".jsonl", ".jsonl.gz", ".json"))
    return next((path for path in candidates if path.is_file()), None)


def split_in_name(path: Path) -> tuple[str, str]:
    """The split that a file's name gives, and the rest of the name: `sentences_train.csv` is ("train", "sentences")."""
    stem = _stem(path).lower()
    if stem in SPLIT_VALUES:
        return SPLIT_VALUES[stem], ""
    parts = re.split(r"[-_. ]", stem)
    for at in (len(parts) - 1, 0):
        if parts[at] in SPLIT_VALUES:
            return SPLIT_VALUES[parts[at]], "_".join(parts[:at] + parts[at + 1 :])
    return "", stem


def _in_folder(folder: Path) -> Files:
    try:
        files = sorted(_data_files(folder))
    except PermissionError as error:
        raise RequestError(f"the folder {folder} may not be read by this user", seen=str(error)) from error
    if not files:
        raise RequestError(
            f"the folder {folder} holds no data file",
            seen=", ".join(sorted(entry.name for entry in folder.iterdir())[:10]) or "it is empty",
            try_next=(f"give a file, or a folder with train.csv (or {', '.join(_ENDINGS[1:8])})",),
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
        raise RequestError(
            f"the folder {folder} does not say which file is for training",
            seen=", ".join(path.name for path in files[:12]),
            try_next=(f"holdfast survey {files[0]}", "name the files train, validation and test"),
        )
    splits = {split: tuple(whole[chosen][split]) for split in SPLITS if split in whole[chosen]}
    unread = [path.name for path in files if not any(path in read for read in splits.values())]
    warnings = (f"not read: {', '.join(unread)}",) if unread else ()
    return Files(splits=splits, warnings=warnings)


def _data_files(folder: Path) -> Iterator[Path]:
    for place in (folder, folder / "data"):
        if not place.is_dir():
            continue
        for path in place.iterdir():
            name = path.name.lower().removesuffix(".gz")
            is_data = name.endswith(_ENDINGS) and not name.startswith((".", *_NOT_DATA))
            if is_data and path.is_file():
                yield path


def _unread_neighbours(request: DataRequest) -> tuple[str, ...]:
    """Name the files beside the given one that look like its other splits."""
    split, rest = split_in_name(request.path)
    if split != "train" or request.validation or request.test:
        return ()
    try:
        beside = [path for path in sorted(_data_files(request.path.parent)) if split_in_name(path)[1] == rest]
    except OSError:
        return ()
    flags = [
        f"--{split_in_name(path)[0]} {path}" for path in beside if split_in_name(path)[0] in ("validation", "test")
    ]
    return (f"other splits lie beside it and are not read; {' '.join(flags)} reads them",) if flags else ()


def _stem(path: Path) -> str:
    name = path.name
    for ending in (".gz", *_ENDINGS):
        name = name[: -len(ending)] if name.lower().endswith(ending) else name
    return _SHARD.sub("", name)
