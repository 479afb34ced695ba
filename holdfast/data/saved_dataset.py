"""A dataset that the `datasets` library saved with `save_to_disk`: Arrow files, with the names of classes next to them.

Nothing of that library is imported: `state.json` lists the files, `dataset_info.json` has the features.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from holdfast.core.errors import RequestError
from holdfast.core.facts import SPLITS
from holdfast.data.names import SPLIT_VALUES

_STATE, _INFO, _SPLITS = "state.json", "dataset_info.json", "dataset_dict.json"
_NO_CLASS = -1  # how the library writes a missing label


def is_saved_dataset(folder: Path) -> bool:
    """Whether a folder was written by `save_to_disk`."""
    return (folder / _SPLITS).is_file() or ((folder / _STATE).is_file() and bool(_arrow_files(folder)))


def saved_splits(folder: Path) -> tuple[dict[str, tuple[Path, ...]], tuple[str, ...]]:
    """The Arrow files of each split, and the names of the splits that are not read."""
    if not (folder / _SPLITS).is_file():
        return {"train": _arrow_files(folder)}, ()
    listed = _read(folder / _SPLITS).get("splits")
    names = [str(name) for name in listed] if isinstance(listed, list) else []
    found = {SPLIT_VALUES.get(name.lower(), ""): name for name in reversed(names)}
    if "train" not in found:
        raise RequestError(
            f"the dataset in {folder} has no split for training",
            found=f"its splits: {', '.join(names) or 'none'}",
            try_next=("use the folder of one split",),
        )
    splits = {split: _arrow_files(folder / found[split]) for split in SPLITS if split in found}
    return splits, tuple(name for name in names if name not in [found.get(split) for split in SPLITS])


def class_names(arrow_file: Path) -> Mapping[str, tuple[str, ...]]:
    """The names of the classes of each column that has numbers in their place."""
    features = _read(arrow_file.parent / _INFO).get("features")
    found = {}
    for column, feature in features.items() if isinstance(features, dict) else ():
        inner = feature.get("feature", feature) if isinstance(feature, dict) else None
        inner = inner[0] if isinstance(inner, list) and inner else inner
        names = inner.get("names") if isinstance(inner, dict) and inner.get("_type") == "ClassLabel" else None
        if isinstance(names, list) and names:
            found[str(column)] = tuple(map(str, names))
    return found


def named(value: object, names: tuple[str, ...]) -> object:
    """The class of a number, or of each number of a list; None for a missing one."""
    if isinstance(value, list):
        return [named(item, names) for item in value]
    if isinstance(value, int) and not isinstance(value, bool):
        return names[value] if 0 <= value < len(names) else None if value == _NO_CLASS else value
    return value


def _arrow_files(folder: Path) -> tuple[Path, ...]:
    listed = _read(folder / _STATE).get("_data_files")
    names = [one.get("filename") for one in listed if isinstance(one, dict)] if isinstance(listed, list) else []
    paths = [folder / Path(str(name)).name for name in names]
    if missing := [path.name for path in paths if not path.is_file()]:
        raise RequestError(
            f"the dataset in {folder} is incomplete",
            found=f"missing: {', '.join(missing[:5])}",
            try_next=("save or copy it again",),
        )
    return tuple(paths)


def _read(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}
