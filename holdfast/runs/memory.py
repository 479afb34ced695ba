"""Remembers, for this machine and its installed libraries, which changes made a command finish.

One small file in the user's state folder, written whole under a lock. What was learned under other libraries or another
system is kept but not used: it proves nothing here.
"""

import fcntl
import hashlib
import json
import os
import platform
import re
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from holdfast.core.artifacts import write_artifact
from holdfast.core.env import state_folder

_FILE = "memory.json"
_MOST_ENTRIES = 500
_LIBRARIES = r"(torch|transformers|accelerate|numpy|tokenizers|datasets|lightning|pytorch_lightning|trl|peft|faiss_cpu)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """What made something finish here."""

    words: str  # what was run
    changes: Mapping[str, Any]
    attempts: int  # it took to find out
    fingerprint: str  # of the system and its libraries
    time: float  # of day, when it last finished
    phases: Mapping[str, float] = field(default_factory=dict)  # the longest that each took, in seconds


class Memory:
    """The machine's memory of what worked."""

    def __init__(self, folder: Path, fingerprint: str):
        self._folder, self.fingerprint = folder, fingerprint

    @classmethod
    def open(cls, command: tuple[str, ...] = ()) -> "Memory":
        """The memory of this user on this machine, for the interpreter that the command starts."""
        return cls(state_folder(), fingerprint_of(command))

    def find(self, key: str) -> Known | None:
        """What worked for this key with the libraries as they are now."""
        return self.entries().get(f"{key}:{self.fingerprint}")

    def entries(self) -> dict[str, Known]:
        """Everything that is remembered, the newest last."""
        try:
            known = json.loads((self._folder / _FILE).read_text(encoding="utf-8"))["entries"]
            entries = {key: Known(**entry) for key, entry in known.items()}
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return {}  # absent, or not ours: a memory is a help, never a condition
        return dict(sorted(entries.items(), key=lambda item: item[1].time))

    def remember(
        self,
        key: str,
        words: str,
        changes: Mapping[str, object],
        attempts: int,
        phases: Mapping[str, float] | None = None,
    ) -> None:
        """Keep what made it finish; a full disk or a folder that cannot be written only costs the memory."""
        entry = Known(
            words=words,
            changes=dict(changes),
            attempts=attempts,
            fingerprint=self.fingerprint,
            time=time.time(),
            phases=dict(phases or {}),
        )
        try:
            with self._changed() as entries:
                entries.pop(f"{key}:{self.fingerprint}", None)
                entries[f"{key}:{self.fingerprint}"] = entry
        except OSError:
            return

    def forget(self, part: str) -> list[Known]:
        """Drop the entries whose command contains these words, or all for an empty string; give what was dropped."""
        with self._changed() as entries:
            dropped = {key: entry for key, entry in entries.items() if part in entry.words or key.startswith(part)}
            for key in dropped:
                del entries[key]
        return list(dropped.values())

    @contextmanager
    def _changed(self) -> Iterator[dict[str, Known]]:
        self._folder.mkdir(parents=True, exist_ok=True)
        lock = os.open(self._folder / f"{_FILE}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            entries = self.entries()
            yield entries
            newest = dict(list(entries.items())[-_MOST_ENTRIES:])
            plain = {key: asdict(entry) for key, entry in newest.items()}
            write_artifact(self._folder, _FILE, {"version": 1, "entries": plain})
        finally:
            os.close(lock)


def key_of(*parts: str) -> str:
    """A short key for what is run."""
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def fingerprint_of(command: tuple[str, ...] = ()) -> str:
    """Name this system and the libraries of the command's interpreter: proof holds only there."""
    prefix = _prefix_of(command)
    folders = [*prefix.glob("lib/python3*/site-packages"), *prefix.glob("Lib/site-packages")]
    found = sorted({item.name for folder in folders for item in folder.glob("*.dist-info") if _counts(item.name)})
    system = (platform.system(), platform.release().split("-")[0], platform.machine(), str(os.cpu_count()))
    return hashlib.sha256("\0".join((*system, *found)).encode()).hexdigest()[:16]


def _counts(name: str) -> bool:
    return re.match(rf"{_LIBRARIES}-\d", name) is not None


def _prefix_of(command: tuple[str, ...]) -> Path:
    """The environment that a command runs in, by where its program lies."""
    import shutil

    program = shutil.which(command[0]) if command else None
    return Path(program).absolute().parents[1] if program else Path(sys.prefix)
