"""Detects broken checkpoints by their bytes alone, without torch: sizes, headers and zip directories.

HF's Trainer writes directly into `checkpoint-N/`, `trainer_state.json` last. A kill in the middle leaves a folder that
the Trainer's own resume chooses and fails on. Lightning's `.ckpt` and torch's `.pt`, `.pth` and `.bin` files are zip
archives with the directory at the end, which a truncated file lacks.
"""

from __future__ import annotations

import json
import math
import os
import re
import zipfile
from typing import Any, Iterable

_NUMBERED = re.compile(r"checkpoint-(\d+)$")
_STATE = "trainer_state.json"


def why_broken(folder: str) -> str:
    """What is wrong with a Trainer's checkpoint; empty if it is intact."""
    if not os.path.isdir(folder):
        return "missing"
    state = read_state(folder)
    if state is None:
        return f"{_STATE} is missing or truncated: the save was not finished"
    names = sorted(os.listdir(folder))
    weights = [name for name in names if name.endswith((".safetensors", ".bin", ".pt", ".pth"))]
    for name in weights:
        reason = why_broken_file(os.path.join(folder, name))
        if reason:
            return f"{name}: {reason}"
    for name in names:
        if name.endswith(".index.json"):
            missing = _missing_shards(os.path.join(folder, name), set(names))
            if missing:
                return f"{name}: {missing}"
    bad = last_bad_log(state)
    return f"its last log is not finite: {bad}" if bad else ""


def why_broken_file(path: str) -> str:
    """What is wrong with one file of weights or state; empty if it is intact."""
    try:
        if os.path.getsize(path) == 0:
            return "empty"
        if path.endswith(".safetensors"):
            return _why_broken_safetensors(path)
        return _why_broken_zip(path)
    except OSError as error:
        return str(error)


def numbered(folder: str) -> list[tuple[int, str]]:
    """Every `checkpoint-N` of a folder with its step, the highest first."""
    try:
        names = os.listdir(folder)
    except OSError:
        return []
    found = [(int(match[1]), os.path.join(folder, name)) for name in names if (match := _NUMBERED.match(name))]
    return sorted(found, reverse=True)


def read_state(folder: str) -> dict[str, Any] | None:
    """The Trainer's state in a checkpoint, or None if it is missing or incomplete."""
    try:
        with open(os.path.join(folder, _STATE), encoding="utf-8") as file:
            state = json.load(file)
    except (OSError, ValueError):
        return None
    return state if isinstance(state, dict) and isinstance(state.get("global_step"), int) else None


def last_bad_log(state: dict[str, Any]) -> str:
    """The NaN or infinite values of a state's last training log, as text."""
    for log in reversed(state.get("log_history") or []):
        if "loss" in log or "grad_norm" in log:
            return not_finite(log)
    return ""


def not_finite(log: dict[str, Any], names: Iterable[str] = ("loss", "grad_norm")) -> str:
    """Which of a log's values are NaN or infinite, as text."""
    bad = [(name, log[name]) for name in names if isinstance(log.get(name), float) and not math.isfinite(log[name])]
    return ", ".join(f"{name} {value}" for name, value in bad)


def _why_broken_safetensors(path: str) -> str:
    size = os.path.getsize(path)
    with open(path, "rb") as file:
        header_bytes = int.from_bytes(file.read(8), "little")
        if size < 8 or header_bytes > size - 8:
            return "truncated in its header"
        try:
            header = json.loads(file.read(header_bytes))
        except ValueError:
            return "unreadable header"
    ends = [entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"]
    expected = 8 + header_bytes + max(ends, default=0)
    return "" if size == expected else f"{size} bytes, but its header says {expected}"


def _why_broken_zip(path: str) -> str:
    with open(path, "rb") as file:
        if file.read(2) != b"PK":
            return ""  # torch's old format, which has no directory to check
    try:
        with zipfile.ZipFile(path) as archive:
            last = max(archive.infolist(), key=lambda entry: entry.header_offset, default=None)
            return "" if last is not None else "an empty archive"
    except zipfile.BadZipFile:
        return "truncated: no central directory"


def _missing_shards(index: str, names: set[str]) -> str:
    try:
        with open(index, encoding="utf-8") as file:
            shards = set(json.load(file)["weight_map"].values())
    except (OSError, ValueError, KeyError, TypeError):
        return "unreadable"
    missing = sorted(shards - names)
    return f"{missing[0]} is missing" if missing else ""
