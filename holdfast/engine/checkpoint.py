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
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from holdfast.core.artifacts import write_artifact
from holdfast.core.events import Events
from holdfast.core.runfolder import MANIFEST

Tensors = dict[str, Tensor]

_FORMAT = 1
_KEEP_NEWEST = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """A verified checkpoint."""

    step: int
    parts: dict[str, Tensors]  # "weights", "optimizer"
    facts: dict[str, object]  # small values that belong to the run, such as the best metric


class Checkpoints:
    """The checkpoints of one run, and what the last save cost."""

    def __init__(self, folder: Path, events: Events):
        self._folder, self._events = folder, events
        self._writer: threading.Thread | None = None
        self._snapshot: dict[str, Tensors] = {}
        self.stall_seconds = 0.0
        self.write_seconds = 0.0
        folder.mkdir(parents=True, exist_ok=True)
        for draft in folder.glob(".draft-*"):  # of a writer that was killed
            shutil.rmtree(draft, ignore_errors=True)

    def save(self, step: int, parts: dict[str, Tensors], facts: dict[str, object], *, best: bool = False) -> None:
        """Copy now, write in the background. Waits only for an earlier save that is still being written."""
        self.wait()
        begun = time.perf_counter()
        self._copy(parts)
        self.stall_seconds = time.perf_counter() - begun
        self._writer = threading.Thread(target=self._write, args=(step, dict(facts), best), name="checkpoint")
        self._writer.start()

    def wait(self) -> None:
        """Wait until the last save is on the disk, or has failed and said so."""
        if self._writer:
            self._writer.join()
            self._writer = None

    def load_newest(self) -> Loaded | None:
        """The newest checkpoint that proves whole; a damaged one is reported and the one before it used."""
        for folder in self._newest_first():
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
                if name not in kept:
                    kept[name] = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.is_cuda)
                kept[name].copy_(tensor.detach(), non_blocking=tensor.is_cuda)
        if any(tensor.is_cuda for tensors in parts.values() for tensor in tensors.values()):
            torch.cuda.synchronize()

    def _write(self, step: int, facts: dict[str, object], best: bool) -> None:
        begun = time.perf_counter()
        draft = self._folder / f".draft-{step}-{os.getpid()}"
        try:
            draft.mkdir()
            sums = {}
            for part, tensors in self._snapshot.items():
                target = draft / f"{part}.safetensors"
                save_file(tensors, target)
                sums[target.name] = _checksum(target, sync=True)
            manifest = {"format": _FORMAT, "step": step, "sha256": sums, "facts": facts, "best": best}
            write_artifact(draft, MANIFEST, manifest)
            _sync_folder(draft)
            final = self._folder / f"step-{step:09d}"
            shutil.rmtree(final, ignore_errors=True)
            draft.rename(final)
            _sync_folder(self._folder)
            self.write_seconds = time.perf_counter() - begun
            self._events.write("saved", step=step, best=best, seconds=round(self.write_seconds, 3))
            self._drop_old()
        except (OSError, SafetensorError) as error:
            # A full disk must not end the run, nor touch an earlier checkpoint; the next save tries again.
            self._events.write("save failed", step=step, reason=str(error))
        finally:
            shutil.rmtree(draft, ignore_errors=True)

    def _newest_first(self) -> list[Path]:
        return sorted((path for path in self._folder.glob("step-*") if path.is_dir()), reverse=True)

    def _drop_old(self) -> None:
        folders = self._newest_first()
        best = max((folder for folder in folders if _manifest(folder).get("best")), default=None)
        for folder in folders[_KEEP_NEWEST:]:
            if folder != best:
                shutil.rmtree(folder, ignore_errors=True)


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
    return Loaded(step=manifest["step"], parts=parts, facts=manifest["facts"])


def _manifest(folder: Path) -> dict[str, object]:
    try:
        manifest: dict[str, object] = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        return manifest
    except (OSError, ValueError):
        return {}


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
