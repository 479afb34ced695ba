"""What this machine remembers between runs: which changes made a command finish, and which settings were proven.

Two small files in the user's state folder, each written whole under its lock. What was learned under other libraries or
another system is kept but not used: it proves nothing here.
"""

import fcntl
import hashlib
import os
import platform
import re
import shutil
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Generic, TypeVar

from holdfast.core.artifacts import read_artifact, write_artifact
from holdfast.core.env import state_folder
from holdfast.core.facts import ModelFacts
from holdfast.core.records import Changes, Record, TimedCandidate, to_record
from holdfast.core.settings import EngineSettings

_LIBRARIES = r"(torch|transformers|accelerate|numpy|tokenizers|datasets|lightning|pytorch_lightning|trl|peft|faiss_cpu)"


class RememberedRun(Record, frozen=True, kw_only=True):
    """What made a command or a training finish here."""

    words: str  # what was run
    changes: Changes
    attempts: int  # it took to find out
    fingerprint: str  # of the system and its libraries
    time: float  # of day, when it last finished
    phases: Mapping[str, float] = {}  # the longest that each took, in seconds


class RememberedProof(Record, frozen=True, kw_only=True):
    """What was proven for one kind of training run."""

    words: str
    changes: Mapping[str, Any] = {}  # to the planned settings: the candidate that won
    candidates: tuple[TimedCandidate, ...] = ()
    tokens_per_second: float = 0.0
    has_longest: bool = False  # the longest examples went through as well
    time: float = 0.0


R = TypeVar("R", RememberedRun, RememberedProof)


class _Entries(Generic[R]):
    """The entries of one file, by key. A file that is missing or damaged has none: a memory is never a condition."""

    def __init__(self, file: Path, kind: type[R], most: int):
        self._file, self._most = file, most
        self._kind: type[R] = kind

    def read(self) -> dict[str, R]:
        """Everything that is remembered, the newest last."""
        known = read_artifact(self._file).get("entries")
        found = {key: to_record(entry, self._kind) for key, entry in known.items()} if isinstance(known, dict) else {}
        entries = {key: entry for key, entry in found.items() if entry}
        return dict(sorted(entries.items(), key=lambda item: item[1].time))

    @contextmanager
    def changed(self) -> Iterator[dict[str, R]]:
        """Change the entries under a lock, so that no entry of another process is lost. Raises OSError."""
        folder, name = self._file.parent, self._file.name
        folder.mkdir(parents=True, exist_ok=True)
        lock = os.open(folder / f"{name}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            entries = self.read()
            yield entries
            newest = dict(list(entries.items())[-self._most :])
            write_artifact(folder, name, {"version": 2, "entries": newest})
        finally:
            os.close(lock)

    def keep(self, key: str, entry: R) -> None:
        """Remember an entry; a full disk or a folder that cannot be written only costs the memory."""
        try:
            with self.changed() as entries:
                entries.pop(key, None)
                entries[key] = entry
        except OSError:
            return


class RunMemory:
    """Which changes made which command or training finish on this machine."""

    def __init__(self, folder: Path, fingerprint: str):
        self._entries = _Entries(folder / "memory.json", RememberedRun, most=500)
        self._fingerprint = fingerprint

    @classmethod
    def open(cls, command: tuple[str, ...] = ()) -> "RunMemory":
        """The memory of this user on this machine, for the interpreter that the command starts."""
        return cls(state_folder(), fingerprint_of(command))

    def find(self, key: str) -> RememberedRun | None:
        """What worked for this key with the libraries as they are now."""
        return self.entries().get(f"{key}:{self._fingerprint}")

    def entries(self) -> dict[str, RememberedRun]:
        """Everything that is remembered, the newest last."""
        return self._entries.read()

    def remember(
        self, key: str, words: str, changes: Changes, attempts: int, phases: Mapping[str, float] | None = None
    ) -> None:
        """Keep what made it finish."""
        entry = RememberedRun(
            words=words,
            changes=dict(changes),
            attempts=attempts,
            fingerprint=self._fingerprint,
            time=time.time(),
            phases=dict(phases or {}),
        )
        self._entries.keep(f"{key}:{self._fingerprint}", entry)

    def forget(self, part: str) -> list[RememberedRun]:
        """Drop the entries whose command contains this text, or all for an empty one; return what was dropped."""
        with self._entries.changed() as entries:
            dropped = {key: entry for key, entry in entries.items() if part in entry.words or key.startswith(part)}
            for key in dropped:
                del entries[key]
        return list(dropped.values())


def recall_proof(settings: EngineSettings, model: ModelFacts) -> RememberedProof | None:
    """What was proven for runs like this one, on this machine and with these libraries."""
    return _proofs().read().get(_proof_key(settings, model))


def remember_proof(
    settings: EngineSettings, model: ModelFacts, candidates: tuple[TimedCandidate, ...], *, has_longest: bool
) -> None:
    """Keep what was proven for runs like this one."""
    best = next(one for one in candidates if one.is_chosen)
    entry = RememberedProof(
        words=best.words,
        changes=best.changes,
        candidates=candidates,
        tokens_per_second=best.tokens_per_second,
        has_longest=has_longest,
        time=time.time(),
    )
    _proofs().keep(_proof_key(settings, model), entry)


def key_of(*parts: str) -> str:
    """A short key for what is run."""
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def fingerprint_of(command: tuple[str, ...] = ()) -> str:
    """Name this system and the libraries of the command's interpreter: proof holds only there."""
    prefix = _prefix_of(command)
    folders = [*prefix.glob("lib/python3*/site-packages"), *prefix.glob("Lib/site-packages")]
    found = sorted({item.name for folder in folders for item in folder.glob("*.dist-info") if _counts(item.name)})
    system = (platform.system(), platform.release().split("-")[0], platform.machine(), str(os.cpu_count()))
    return key_of(*system, *found)


def _proofs() -> _Entries[RememberedProof]:
    return _Entries(state_folder() / "proofs.json", RememberedProof, most=200)


def _proof_key(settings: EngineSettings, model: ModelFacts) -> str:
    """Runs that compute alike share a key: what they learn, and from which data, does not matter."""
    return key_of(
        fingerprint_of(),
        *(settings.task, settings.device, str(settings.batch_size), str(settings.gradient_checkpointing)),
        *(model.kind, str(model.parameters), str(model.layers), str(model.hidden)),
        "lora" if settings.options.get("lora") else "full",
        *((str(settings.processes),) if settings.processes > 1 else ()),
    )


def _counts(name: str) -> bool:
    return re.match(rf"{_LIBRARIES}-\d", name) is not None


def _prefix_of(command: tuple[str, ...]) -> Path:
    """The environment that a command runs in, by the folder of its program."""
    program = shutil.which(command[0]) if command else None
    return Path(program).absolute().parents[1] if program else Path(sys.prefix)
