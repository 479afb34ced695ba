"""Checkpoints: whole or absent, verified when loaded, never unpickled.

A save copies the tensors in memory (the loop waits for that alone) and writes them from a background thread:
safetensors files into a draft folder, fsync, a manifest with checksums last, then one rename. A folder with the final
name is therefore complete unless the disk itself changed it later, and the checksums tell that.
"""

import hashlib
import json
import os
import shutil
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from holdfast.core.artifacts import write_artifact
from holdfast.core.errors import MachineError
from holdfast.core.old_events import Events
from holdfast.core.room import FULL, room_at
from holdfast.core.runfolder import MANIFEST
from holdfast.core.text import human_bytes
from holdfast.engine.ranks import whole

Tensors = dict[str, Tensor]

_FORMAT = 1
_KEEP_NEWEST = 2
_BEST = "best.json"
_BEGUN = "-begun"


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """A verified checkpoint. Its tensors are mapped from the file: copied when used, never held twice."""

    step: int
    is_begun: bool  # the step's epoch had begun
    parts: dict[str, Tensors]  # "weights", "optimizer"
    facts: Mapping[str, Any]  # small values that belong to the run, such as the best metric


class Checkpoints:
    """The checkpoints of one run, and what the last save cost."""

    def __init__(self, folder: Path, events: Events):
        self._folder, self._events = folder, events
        self._writer: threading.Thread | None = None
        self._snapshot: dict[str, Tensors] = {}
        self.stall_seconds = 0.0  # the loop waited
        self.cpu_seconds = 0.0  # the writer computed
        self.write_seconds = 0.0  # until it was on the disk
        self.has_failed = False  # the last save
        folder.mkdir(parents=True, exist_ok=True)
        for draft in folder.glob(".d*-*"):  # of a writer that was killed, or damaged and reported by an earlier attempt
            shutil.rmtree(draft, ignore_errors=True)

    def require_room(self, parts: Mapping[str, Tensors], unsaved_bytes: int) -> None:
        """Refuse to start where two checkpoints cannot fit: one must stay whole while the next is written."""
        size = sum(tensor.nbytes for tensors in parts.values() for tensor in tensors.values()) + unsaved_bytes
        free = room_at(self._folder).free_bytes
        held = sum(file.stat().st_size for file in self._folder.rglob("*.safetensors"))
        if free + held < 2 * size:
            raise MachineError(
                "the disk has no room for two checkpoints, so a full disk could end the run",
                seen=f"{human_bytes(free)} free at {self._folder}; two checkpoints need {human_bytes(2 * size - held)}",
                try_next=("make room, or choose another run folder",),
                slug="disk-full",
            )

    def save(
        self,
        step: int,
        parts: dict[str, Tensors],
        facts: dict[str, object],
        *,
        best: bool = False,
        is_begun: bool = False,
    ) -> None:
        """Copy now, write in the background. Waits only for an earlier save that is still being written.

        `is_begun` says that the step's epoch has begun: the state holds what the epoch made, as one saved before it
        at the same step does not.
        """
        self.wait()
        target = checkpoint_path(self._folder, step, is_begun)
        if self._is_there(target):  # never touch one that is whole
            if best:
                self._mark_best(step)
            return
        begun = time.perf_counter()
        self._copy(parts)
        self.stall_seconds = time.perf_counter() - begun
        self._writer = threading.Thread(target=self._write, args=(target, step, dict(facts), best), name="checkpoint")
        self._writer.start()

    def wait(self) -> None:
        """Wait until the last save is on the disk, or has failed and said so."""
        if self._writer:
            self._writer.join()
            self._writer = None

    def load_newest(self) -> Loaded | None:
        """The newest checkpoint that proves whole; a damaged one is reported and the one before it used."""
        return next((loaded for folder in self._newest_first() if (loaded := self._load(folder))), None)

    def load_best(self) -> Loaded | None:
        """The checkpoint marked as the best, if it is there and whole."""
        folder = self._best_folder()
        return self._load(folder) if folder else None

    def _is_there(self, target: Path) -> bool:
        return target.exists()

    def _load(self, folder: Path) -> Loaded | None:
        try:
            return read_checkpoint(folder)
        except (OSError, ValueError, KeyError, SafetensorError) as error:
            self._events.write("checkpoint damaged", folder=folder.name, reason=str(error))
            folder.rename(folder.with_name(f".damaged-{folder.name}-{time.time_ns()}"))
            return None

    def _copy(self, parts: dict[str, Tensors]) -> None:
        """Copy into buffers that are kept, so that memory is taken once and not at each save."""
        for part, tensors in parts.items():
            kept = self._snapshot.setdefault(part, {})
            for name in kept.keys() - tensors.keys():
                del kept[name]
            for name, tensor in tensors.items():
                if name not in kept or kept[name].shape != tensor.shape:
                    kept[name] = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.is_cuda)
                kept[name].copy_(whole(tensor.detach()), non_blocking=tensor.is_cuda)
        if any(tensor.is_cuda for tensors in parts.values() for tensor in tensors.values()):
            torch.cuda.synchronize()

    def _write(self, target: Path, step: int, facts: dict[str, object], best: bool) -> None:
        begun = time.perf_counter()
        try:
            try:
                self._write_once(target, step, facts)
            except (OSError, SafetensorError) as error:
                if not is_full(error):
                    raise
                self._drop_old(keep_newest=1)
                self._write_once(target, step, facts)
            self.has_failed = False
            if best:
                self._mark_best(step)
            self.write_seconds, self.cpu_seconds = time.perf_counter() - begun, time.thread_time()
            self._events.write("saved", step=step, best=best, seconds=round(self.write_seconds, 3))
            self._drop_old()
        except (OSError, SafetensorError) as error:
            # A full disk must not end the run, nor touch an earlier checkpoint; a later save tries again.
            self.has_failed = True
            self._events.write("save failed", step=step, reason=str(error), is_full=is_full(error))

    def _write_once(self, path: Path, step: int, facts: dict[str, object]) -> None:
        draft = self._folder / f".draft-{step}-{os.getpid()}"
        try:
            draft.mkdir()
            sums = {}
            for part, tensors in self._snapshot.items():
                target = draft / f"{part}.safetensors"
                save_file(tensors, target)
                sums[target.name] = _checksum(target, sync=True)
            write_artifact(draft, MANIFEST, {"format": _FORMAT, "step": step, "sha256": sums, "facts": facts})
            _sync_folder(draft)
            draft.rename(path)
            _sync_folder(self._folder)
        finally:
            shutil.rmtree(draft, ignore_errors=True)

    def _newest_first(self) -> list[Path]:
        return sorted((path for path in self._folder.glob("step-*") if path.is_dir()), reverse=True)

    def _mark_best(self, step: int) -> None:
        try:
            write_artifact(self._folder, _BEST, {"step": step})
        except OSError as error:
            self._events.write("save failed", step=step, reason=str(error), is_full=is_full(error))

    def _best_folder(self) -> Path | None:
        try:
            step = json.loads((self._folder / _BEST).read_text(encoding="utf-8"))["step"]
        except (OSError, ValueError, KeyError):
            return None
        folder = checkpoint_path(self._folder, step)
        return folder if folder.exists() else None

    def _drop_old(self, keep_newest: int = _KEEP_NEWEST) -> None:
        best = self._best_folder()
        for folder in self._newest_first()[keep_newest:]:
            if folder != best:
                # Renamed first: what is half deleted must not look like a checkpoint.
                gone = folder.rename(folder.with_name(f".dropped-{folder.name}"))
                shutil.rmtree(gone, ignore_errors=True)


def checkpoint_path(folder: Path, step: int, is_begun: bool = False) -> Path:
    """Where the checkpoint of a step lies."""
    return folder / (f"step-{step:09d}{_BEGUN}" if is_begun else f"step-{step:09d}")


def read_checkpoint(folder: Path) -> Loaded:
    """Load one checkpoint; ValueError says which file is not what was written."""
    manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    if manifest["format"] != _FORMAT:
        raise ValueError(f"format {manifest['format']} is not the one this version reads ({_FORMAT})")
    parts = {}
    for name, expected in manifest["sha256"].items():
        if _checksum(folder / name) != expected:
            raise ValueError(f"{name} is not what was saved: its checksum differs")
        parts[name.removesuffix(".safetensors")] = load_file(folder / name)
    is_begun = folder.name.endswith(_BEGUN)
    return Loaded(step=manifest["step"], is_begun=is_begun, parts=parts, facts=manifest["facts"])


def is_full(error: Exception) -> bool:
    """Whether the disk has no room left. safetensors gives its own error, with the system's number in the text."""
    number = getattr(error, "errno", None)
    return number in FULL or any(f"os error {code})" in str(error) for code in FULL)


def _checksum(path: Path, *, sync: bool = False) -> str:
    with path.open("rb") as file:
        if sync:
            os.fsync(file.fileno())
        return hashlib.file_digest(file, "sha256").hexdigest()


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
