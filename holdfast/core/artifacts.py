"""Files that appear whole or not at all, and the plain form in which values are written."""

import contextlib
import dataclasses
import enum
import json
import math
import os
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

if sys.platform != "win32":
    import fcntl


def write_artifact(folder: Path, name: str, value: object) -> Path:
    """Write JSON so that a reader never sees half of it, even when the writer is killed."""
    # The draft's name holds its writer, so that two writers of one artifact do not share a draft.
    target, draft = folder / name, folder / f".{name}.{os.getpid()}-{threading.get_ident()}.draft"
    try:
        with draft.open("w", encoding="utf-8") as file:
            json.dump(to_plain(value), file, indent=2, allow_nan=False)
            file.flush()
            flush_to_disk(file.fileno())
        draft.replace(target)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
    return target


def flush_to_disk(file: int) -> None:
    """Return when a file is on the medium. On macOS fsync only hands it to the drive, which may keep it in a cache."""
    if sys.platform == "darwin":
        with contextlib.suppress(OSError):  # not on every file system
            fcntl.fcntl(file, fcntl.F_FULLFSYNC)
            return
    os.fsync(file)


def read_artifact(path: Path) -> dict[str, Any]:
    """The JSON object in a file; empty if the file is missing or damaged."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def to_plain(value: object) -> object:
    """Turn our values into JSON types: objects, arrays, strings, numbers, booleans and null.

    NaN and infinity become null: JSON has neither, and a single one makes readers reject the whole file.
    """
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: to_plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, msgspec.Struct):
        return to_plain(msgspec.to_builtins(value))
    if isinstance(value, Mapping):
        return {str(key): to_plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [to_plain(item) for item in value]
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def to_json(value: object) -> str:
    """Write one value as the single JSON object a `--json` command prints."""
    return json.dumps(to_plain(value), indent=2, ensure_ascii=False, allow_nan=False)
