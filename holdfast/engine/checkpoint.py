"""Checkpoints: complete or absent, verified when loaded, never unpickled.

A save copies the tensors in memory (the only part the loop waits for) and writes them from a background thread:
safetensors files into a draft folder, fsync, a manifest with checksums last, then one rename. A folder with the final
name is therefore complete unless the disk itself changed it later, which the checksums detect.

The files are the same for every backend and any number of ranks, so a run can move between them. Imports no torch:
`TensorFiles` says how a backend copies, writes and reads its tensors.
"""

import hashlib
import json
import os
import shutil
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import msgspec
from safetensors import SafetensorError

from holdfast.core.artifacts import flush_to_disk, to_plain, write_artifact
from holdfast.core.disk_space import FULL, room_at
from holdfast.core.errors import MachineError, RequestError
from holdfast.core.event_log import EventLog
from holdfast.core.events import CheckpointFailed, CheckpointRejected, CheckpointSaved
from holdfast.core.runfolder import MANIFEST
from holdfast.core.settings import ENGINE_DEFAULTS, LEARNING_SETTINGS
from holdfast.core.text import human_bytes
from holdfast.engine.attempt_settings import AttemptSettings
from holdfast.engine.save_schedule import SaveCost

Tensors = dict[str, Any]  # of the backend, or its copies in memory

_FORMAT = 1
_KEEP_NEWEST = 2
_BEST = "best.json"
_BEGUN = "-begun"
_EDGE_BYTES = 1 << 16


class TrainingState(msgspec.Struct, frozen=True, kw_only=True):
    """The small values of a run that a checkpoint holds next to its tensors."""

    best: float | None = None  # value of the metric that decides
    best_step: int = -1
    evaluated_step: int = 0
    identity: dict[str, Any] = {}
    backend: str = "torch"  # that computed it


class CheckpointManifest(msgspec.Struct, frozen=True, kw_only=True):
    """The file that completes a checkpoint; written last."""

    step: int
    sha256: dict[str, str]  # by file name
    facts: TrainingState
    format: int = _FORMAT


class _BestStep(msgspec.Struct, frozen=True):
    step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedCheckpoint:
    """A verified checkpoint. Its tensors are mapped from the file and copied when used, so memory holds them once."""

    step: int
    is_begun: bool  # the step's epoch had begun
    parts: dict[str, Tensors]  # "weights", "optimizer"
    state: TrainingState


class TensorFiles(Protocol):
    """How a backend's tensors become files, and files tensors."""

    def copy(self, parts: Mapping[str, Tensors], kept: dict[str, Tensors]) -> None:
        """Copy into buffers that are kept, so that memory is taken once and not at each save."""

    def write(self, copies: Tensors, path: Path) -> None:
        """Write such copies as safetensors, from any thread."""

    def read(self, path: Path) -> Tensors:
        """Map the tensors of a file, to be copied when used."""


class Checkpoints:
    """The checkpoints of one run, and the cost of the last save."""

    def __init__(self, folder: Path, events: EventLog, files: TensorFiles):
        self._folder, self._events, self._files = folder, events, files
        self._writer: threading.Thread | None = None
        self._snapshot: dict[str, Tensors] = {}
        self.cost = SaveCost()  # of the last save; its thread adds to it when it has ended
        self.has_failed = False  # whether the last save failed
        folder.mkdir(parents=True, exist_ok=True)
        for draft in folder.glob(".d*-*"):  # left by a killed writer, or damaged and reported earlier
            shutil.rmtree(draft, ignore_errors=True)

    def require_room(self, parts: Mapping[str, Tensors], unsaved_bytes: int) -> None:
        """Refuse to start without room for two checkpoints: the old one must stay while the new one is written."""
        size = sum(tensor.nbytes for tensors in parts.values() for tensor in tensors.values()) + unsaved_bytes
        free = room_at(self._folder).free_bytes
        held = sum(file.stat().st_size for file in self._folder.rglob("*.safetensors"))
        if free + held < 2 * size:
            raise MachineError(
                "the disk has no space for two checkpoints",
                found=f"{human_bytes(free)} free at {self._folder}, {human_bytes(2 * size - held)} needed",
                try_next=("free some disk space, or choose another run folder",),
                slug="disk-full",
            )

    def save(
        self,
        step: int,
        parts: dict[str, Tensors],
        state: TrainingState,
        *,
        best: bool = False,
        is_begun: bool = False,
    ) -> None:
        """Copy now, write in the background. Waits only for an earlier save that is still being written.

        `is_begun` marks a checkpoint taken after the task has begun the step's epoch: it also holds what the task made
        for that epoch, unlike one saved at the end of the epoch before, at the same step.
        """
        self.wait()
        target = checkpoint_path(self._folder, step, is_begun)
        if self._exists(target):  # never touch a complete one
            if best:
                self._mark_best(step)
            return
        begun = time.perf_counter()
        for part, tensors in parts.items():
            kept = self._snapshot.setdefault(part, {})
            for name in kept.keys() - tensors.keys():
                del kept[name]
        self._files.copy(parts, self._snapshot)
        self.cost = replace(self.cost, stall_seconds=time.perf_counter() - begun)
        self._writer = threading.Thread(target=self._write, args=(target, step, state, best), name="checkpoint")
        self._writer.start()

    def wait(self) -> None:
        """Wait until the last save is on the disk or has failed."""
        if self._writer:
            self._writer.join()
            self._writer = None

    def load_newest(self) -> LoadedCheckpoint | None:
        """The newest intact checkpoint. A damaged one is reported and set aside."""
        return next((loaded for folder in self._newest_first() if (loaded := self._load(folder))), None)

    def load_best(self) -> LoadedCheckpoint | None:
        """The checkpoint marked as the best, if it exists and is intact."""
        folder = self._best_folder()
        return self._load(folder) if folder else None

    def _exists(self, target: Path) -> bool:
        return target.exists()

    def _load(self, folder: Path) -> LoadedCheckpoint | None:
        try:
            return read_checkpoint(folder, self._files)
        except (OSError, ValueError, SafetensorError) as error:
            self._events.write(CheckpointRejected(path=folder.name, reason=str(error), is_damaged=True))
            folder.rename(folder.with_name(f".damaged-{folder.name}-{time.time_ns()}"))
            return None

    def _write(self, target: Path, step: int, state: TrainingState, best: bool) -> None:
        begun = time.perf_counter()
        try:
            try:
                self._write_once(target, step, state)
            except (OSError, SafetensorError) as error:
                if not is_full(error):
                    raise
                self._drop_old(keep_newest=1)
                self._write_once(target, step, state)
            self.has_failed = False
            if best:
                self._mark_best(step)
            seconds = time.perf_counter() - begun
            self.cost = replace(self.cost, write_seconds=seconds, cpu_seconds=time.thread_time())
            self._events.write(CheckpointSaved(step=step, best=best, seconds=round(seconds, 3)))
            self._drop_old()
        except (OSError, SafetensorError) as error:
            # A full disk must not end the run or touch an earlier checkpoint; a later save tries again.
            self.has_failed = True
            self._events.write(CheckpointFailed(step=step, reason=str(error), is_full=is_full(error)))

    def _write_once(self, path: Path, step: int, state: TrainingState) -> None:
        draft = self._folder / f".draft-{step}-{os.getpid()}"
        try:
            draft.mkdir()
            sums = {}
            for part, tensors in self._snapshot.items():
                target = draft / f"{part}.safetensors"
                self._files.write(tensors, target)
                sums[target.name] = _checksum(target, sync=True)
            write_artifact(draft, MANIFEST, CheckpointManifest(step=step, sha256=sums, facts=state))
            _sync_folder(draft)
            draft.rename(path)
            _sync_folder(self._folder)
        finally:
            shutil.rmtree(draft, ignore_errors=True)

    def _newest_first(self) -> list[Path]:
        return sorted((path for path in self._folder.glob("step-*") if path.is_dir()), reverse=True)

    def _mark_best(self, step: int) -> None:
        try:
            write_artifact(self._folder, _BEST, _BestStep(step))
        except OSError as error:
            self._events.write(CheckpointFailed(step=step, reason=str(error), is_full=is_full(error)))

    def _best_folder(self) -> Path | None:
        try:
            step = msgspec.json.decode((self._folder / _BEST).read_bytes(), type=_BestStep).step
        except (OSError, msgspec.MsgspecError):
            return None
        folder = checkpoint_path(self._folder, step)
        return folder if folder.exists() else None

    def _drop_old(self, keep_newest: int = _KEEP_NEWEST) -> None:
        best = self._best_folder()
        for folder in self._newest_first()[keep_newest:]:
            if folder != best:
                # Renamed first, because a half-deleted folder must not look like a checkpoint.
                gone = folder.rename(folder.with_name(f".dropped-{folder.name}"))
                shutil.rmtree(gone, ignore_errors=True)


def checkpoint_path(folder: Path, step: int, is_begun: bool = False) -> Path:
    """The folder of a step's checkpoint."""
    return folder / (f"step-{step:09d}{_BEGUN}" if is_begun else f"step-{step:09d}")


def read_checkpoint(folder: Path, files: TensorFiles) -> LoadedCheckpoint:
    """Load one checkpoint; raise ValueError where a file differs from what was written."""
    manifest = msgspec.json.decode((folder / MANIFEST).read_bytes(), type=CheckpointManifest)
    if manifest.format != _FORMAT:
        raise ValueError(f"checkpoint format {manifest.format} is not supported; this version reads {_FORMAT}")
    parts = {}
    for name, expected in manifest.sha256.items():
        if _checksum(folder / name) != expected:
            raise ValueError(f"{name} is damaged: its checksum differs")
        parts[name.removesuffix(".safetensors")] = files.read(folder / name)
    is_begun = folder.name.endswith(_BEGUN)
    return LoadedCheckpoint(step=manifest.step, is_begun=is_begun, parts=parts, state=manifest.facts)


def is_full(error: Exception) -> bool:
    """Whether the disk is full. The error of safetensors has no errno, only the system's number in its text."""
    number = getattr(error, "errno", None)
    return number in FULL or any(f"os error {code})" in str(error) for code in FULL)


def _checksum(path: Path, *, sync: bool = False) -> str:
    with path.open("rb") as file:
        if sync:
            flush_to_disk(file.fileno())
        return hashlib.file_digest(file, "sha256").hexdigest()


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        flush_to_disk(handle)
    finally:
        os.close(handle)


def identity_of(settings: AttemptSettings) -> dict[str, object]:
    """Everything that decides what is learned, in small values that can be compared."""
    found = {name: to_plain(getattr(settings, name)) for name in LEARNING_SETTINGS}
    # Through JSON and back, so that it compares equal to what a checkpoint's manifest holds.
    plain: dict[str, object] = json.loads(json.dumps(found))
    return plain | {
        "data": _data_fingerprint(settings.prepared_path),
        "model": _model_fingerprint(Path(settings.model)),
    }


def require_same(then: Mapping[str, object], now: Mapping[str, object], checkpoint: Path) -> None:
    """Refuse to continue from a checkpoint of another run; name the differences.

    An older version did not know every setting, which then had its default.
    """
    then = {**{name: to_plain(ENGINE_DEFAULTS.get(name)) for name in now}, **then}
    differences = [
        f"{name}: {then.get(name)} in the checkpoint, {now.get(name)} now"
        for name in sorted({*then, *now})
        if then.get(name) != now.get(name)
    ]
    if differences:
        raise RequestError(
            "the checkpoint was made with other settings, data or model",
            found=f"{'; '.join(differences)} (in {checkpoint})",
            try_next=("use the earlier settings", "start a new run folder"),
        )


def _data_fingerprint(prepared: Path) -> str:
    text = (prepared / MANIFEST).read_bytes()
    return str(json.loads(text).get("fingerprint") or hashlib.sha256(text).hexdigest())[:16]


def _model_fingerprint(folder: Path) -> str:
    """A hash of the configuration and of each weight file's name, size, head and tail; independent of the path."""
    digest = hashlib.sha256()
    for file in sorted([*folder.glob("config.json"), *folder.glob("*.safetensors")]):
        size = file.stat().st_size
        digest.update(f"{file.name} {size}\n".encode())
        with file.open("rb") as content:
            digest.update(content.read(_EDGE_BYTES))
            content.seek(max(0, size - _EDGE_BYTES))
            digest.update(content.read(_EDGE_BYTES))
    return digest.hexdigest()[:16]
