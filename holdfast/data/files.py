"""Finds the files of a dataset: one file, a folder with a file for each split, or a BEIR folder."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from holdfast.core.data_warnings import DataWarning, data_warning
from holdfast.core.errors import RequestError, type_command
from holdfast.core.facts import SPLITS
from holdfast.data.data_request import DEFAULT_SHARE, DataRequest
from holdfast.data.names import SPLIT_VALUES
from holdfast.data.rawfile import check_is_file

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
    neighbors: tuple[str, ...] = ()  # splits that were not requested but found next to the training file
    warnings: tuple[DataWarning, ...] = ()


def find_files(request: DataRequest) -> Files:
    """Which files are read for which split."""
    path = request.path
    if not path.is_dir():
        check_is_file(path)
        neighbors = _neighbors(request)
        found = Files(splits={"train": (path,), **neighbors}, neighbors=tuple(neighbors))
    elif beir_file(path, "corpus") and beir_file(path, "queries"):
        found = Files(splits={}, beir=path)
    else:
        found = _in_folder(path)
    if request.negatives:
        check_is_file(request.negatives)
    given = {"validation": request.validation, "test": request.test}
    for path in filter(None, given.values()):
        check_is_file(path)
    return replace(found, splits={**found.splits, **{split: (path,) for split, path in given.items() if path}})


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


def _in_folder(folder: Path) -> Files:
    try:
        files = sorted(_data_files(folder))
    except PermissionError as error:
        raise RequestError(f"no permission to read the folder {folder}", found=str(error)) from error
    if not files:
        raise RequestError(
            f"the folder {folder} has no data file",
            found=", ".join(sorted(entry.name for entry in folder.iterdir())[:10]) or "an empty folder",
            try_next=(f"use a file, or a folder with train.csv (or {', '.join(_ENDINGS[1:8])})",),
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
            f"it is unclear which file in {folder} is for training",
            found=", ".join(path.name for path in files[:12]),
            try_next=("name the files train, validation and test", type_command(f"holdfast survey {files[0]}")),
        )
    splits = {split: tuple(whole[chosen][split]) for split in SPLITS if split in whole[chosen]}
    unread = tuple(path.name for path in files if not any(path in read for read in splits.values()))
    return Files(splits=splits, warnings=(data_warning("unread-files", files=unread),) if unread else ())


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
    if split != "train" or request.validation or request.test or shares != (DEFAULT_SHARE, DEFAULT_SHARE):
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
