"""Checkpoints of torch tensors, by one process or by several ranks.

Several ranks leave the same files as one process, so a run can continue with any other number of ranks: the first rank
writes and chooses, the others load what it chose. Every rank must see the folder.
"""

from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from holdfast.core.event_log import EventLog
from holdfast.engine.checkpoint import (
    Checkpoints,
    LoadedCheckpoint,
    Tensors,
    TrainingState,
    checkpoint_path,
    read_checkpoint,
)
from holdfast.engine.distributed_ranks import full_tensor
from holdfast.engine.ranks import Ranks

_NO_CHECKPOINT = -1.0  # broadcast in place of a step


class TorchFiles:
    """torch tensors as safetensors files."""

    def copy(self, parts: Mapping[str, Tensors], kept: dict[str, Tensors]) -> None:
        """Copy into buffers that are kept; those of GPU tensors are pinned."""
        for part, tensors in parts.items():
            for name, tensor in tensors.items():
                buffers = kept[part]
                if name not in buffers or buffers[name].shape != tensor.shape:
                    buffers[name] = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.is_cuda)
                buffers[name].copy_(full_tensor(tensor.detach()), non_blocking=tensor.is_cuda)
        if any(tensor.is_cuda for tensors in parts.values() for tensor in tensors.values()):
            torch.cuda.synchronize()

    def write(self, copies: Tensors, path: Path) -> None:
        """Write such copies."""
        save_file(copies, path)

    def read(self, path: Path) -> Tensors:
        """Map the tensors of a file."""
        return load_file(path)


def make_checkpoints(folder: Path, events: EventLog, ranks: Ranks) -> Checkpoints:
    """The checkpoints of a run for this rank."""
    if not ranks.are_many:
        return Checkpoints(folder, events, TorchFiles())
    return FirstRankCheckpoints(folder, events, ranks) if ranks.is_first else OtherRankCheckpoints(folder, ranks)


class FirstRankCheckpoints(Checkpoints):
    """The first rank writes, and tells the others which checkpoint it loads."""

    def __init__(self, folder: Path, events: EventLog, ranks: Ranks):
        super().__init__(folder, events, TorchFiles())
        self._ranks = ranks

    def load_newest(self) -> LoadedCheckpoint | None:
        """The newest intact checkpoint; the other ranks load the same one."""
        return self._announce(super().load_newest())

    def load_best(self) -> LoadedCheckpoint | None:
        """The checkpoint marked as the best; the other ranks load the same one."""
        return self._announce(super().load_best())

    def _exists(self, target: Path) -> bool:
        return bool(self._ranks.broadcast_number(super()._exists(target)))

    def _announce(self, loaded: LoadedCheckpoint | None) -> LoadedCheckpoint | None:
        self._ranks.broadcast_number(_NO_CHECKPOINT if loaded is None else 2 * loaded.step + loaded.is_begun)
        return loaded


class OtherRankCheckpoints(Checkpoints):
    """Any other rank writes nothing and loads what the first rank chose."""

    def __init__(self, folder: Path, ranks: Ranks):
        self._folder, self._ranks, self._files = folder, ranks, TorchFiles()
        self.has_failed = False

    def require_room(self, parts: Mapping[str, Tensors], unsaved_bytes: int) -> None:
        """The first rank checks this."""

    def save(
        self,
        step: int,
        parts: dict[str, Tensors],
        state: TrainingState,
        *,
        best: bool = False,
        is_begun: bool = False,
    ) -> None:
        """Take part in gathering sharded tensors; the first rank saves them."""
        if not self._ranks.broadcast_number(0.0):
            for tensors in parts.values():
                for tensor in tensors.values():
                    full_tensor(tensor.detach())

    def wait(self) -> None:
        """Nothing is being written."""

    def load_newest(self) -> LoadedCheckpoint | None:
        """The checkpoint that the first rank chose."""
        return self._chosen()

    def load_best(self) -> LoadedCheckpoint | None:
        """The checkpoint that the first rank chose."""
        return self._chosen()

    def _chosen(self) -> LoadedCheckpoint | None:
        number = self._ranks.broadcast_number(_NO_CHECKPOINT)
        if number == _NO_CHECKPOINT:
            return None
        step, is_begun = divmod(int(number), 2)
        return read_checkpoint(checkpoint_path(self._folder, step, bool(is_begun)), self._files)
