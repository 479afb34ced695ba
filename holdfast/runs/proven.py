"""Remembers what was proven on this machine with these libraries, so that the next run of its kind starts from it."""

import hashlib
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from holdfast.core.artifacts import write_artifact
from holdfast.core.env import state_folder
from holdfast.planning.proving import Measured
from holdfast.runs.memory import fingerprint_of

_FILE = "proofs.json"
_MOST_ENTRIES = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Proven:
    """What was proven for one kind of run."""

    words: str
    candidate: Mapping[str, Any] = field(default_factory=dict)  # the settings that won
    measured: Sequence[Mapping[str, Any]] = ()
    tokens_per_second: float = 0.0
    start_seconds: float | None = None
    longest: bool = False  # the longest examples went through as well
    time: float = 0.0


def recall(settings: Mapping[str, Any], model: Mapping[str, Any]) -> Proven | None:
    """What is known of runs like this one, here and with these libraries."""
    entry = _entries().get(_key(settings, model))
    try:
        return Proven(**entry) if entry else None
    except TypeError:
        return None  # of another version


def remember(
    settings: Mapping[str, Any],
    model: Mapping[str, Any],
    best: Measured,
    measured: Sequence[Mapping[str, Any]],
    *,
    has_longest: bool,
) -> None:
    """Keep what was proven; a disk that is full only costs the memory."""
    entry = Proven(
        words=best.words,
        candidate=dict(best.candidate),
        measured=list(measured),
        tokens_per_second=best.tokens_per_second,
        longest=has_longest,
        time=time.time(),
    )
    try:
        folder = state_folder()
        folder.mkdir(parents=True, exist_ok=True)
        entries = _entries() | {_key(settings, model): asdict(entry)}
        newest = dict(sorted(entries.items(), key=lambda item: item[1].get("time", 0))[-_MOST_ENTRIES:])
        write_artifact(folder, _FILE, {"version": 1, "entries": newest})
    except OSError:
        return


def _key(settings: Mapping[str, Any], model: Mapping[str, Any]) -> str:
    parts = (
        fingerprint_of(),
        *(str(settings.get(name)) for name in ("task", "device", "batch_size", "gradient_checkpointing")),
        *(str(model.get(name)) for name in ("kind", "parameters", "layers", "hidden")),
        "lora" if (settings.get("options") or {}).get("lora") else "full",
        *((str(settings["processes"]),) if settings.get("processes") else ()),
    )
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def _entries() -> dict[str, dict[str, Any]]:
    try:
        found = json.loads((state_folder() / _FILE).read_text(encoding="utf-8"))["entries"]
    except (OSError, ValueError, KeyError, TypeError):
        return {}
    return found if isinstance(found, dict) else {}
