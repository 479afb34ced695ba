"""Checkpoints of several ranks: the first one writes and chooses, the others take what it chose.

They are the files of one process, so a run goes on with any other number of ranks. Every rank must see the folder.
"""

from collections.abc import Mapping
from pathlib import Path

from holdfast.core.old_events import Events
from holdfast.engine.checkpoint import Checkpoints, Loaded, Tensors, checkpoint_path, read_checkpoint
from holdfast.engine.ranks import Ranks, whole

_NONE = -1.0


def make_checkpoints(folder: Path, events: Events, ranks: Ranks) -> Checkpoints:
    """The checkpoints of a run, as this rank deals with them."""
    if not ranks.are_many:
        return Checkpoints(folder, events)
    return LeadingCheckpoints(folder, events, ranks) if ranks.is_first else FollowingCheckpoints(folder, ranks)


class LeadingCheckpoints(Checkpoints):
    """Those of the first rank."""

    def __init__(self, folder: Path, events: Events, ranks: Ranks):
        super().__init__(folder, events)
        self._ranks = ranks

    def load_newest(self) -> Loaded | None:
        """The newest checkpoint that proves whole; the others load the same."""
        return self._told(super().load_newest())

    def load_best(self) -> Loaded | None:
        """The checkpoint marked as the best; the others load the same."""
        return self._told(super().load_best())

    def _is_there(self, target: Path) -> bool:
        return bool(self._ranks.tell(super()._is_there(target)))

    def _told(self, loaded: Loaded | None) -> Loaded | None:
        self._ranks.tell(_NONE if loaded is None else 2 * loaded.step + loaded.is_begun)
        return loaded


class FollowingCheckpoints(Checkpoints):
    """Those of any other rank, which writes nothing."""

    def __init__(self, folder: Path, ranks: Ranks):
        self._folder, self._ranks = folder, ranks
        self.has_failed = False

    def require_room(self, parts: Mapping[str, Tensors], unsaved_bytes: int) -> None:
        """The first rank looks after that."""

    def save(
        self,
        step: int,
        parts: dict[str, Tensors],
        facts: dict[str, object],
        *,
        best: bool = False,
        is_begun: bool = False,
    ) -> None:
        """The first rank saves; give it this one's parts of what is dealt out."""
        if not self._ranks.tell(0.0):
            for tensors in parts.values():
                for tensor in tensors.values():
                    whole(tensor.detach())

    def wait(self) -> None:
        """Nothing is being written."""

    def load_newest(self) -> Loaded | None:
        """What the first rank chose."""
        return self._chosen()

    def load_best(self) -> Loaded | None:
        """What the first rank chose."""
        return self._chosen()

    def _chosen(self) -> Loaded | None:
        number = self._ranks.tell(_NONE)
        if number == _NONE:
            return None
        step, is_begun = divmod(int(number), 2)
        return read_checkpoint(checkpoint_path(self._folder, step, bool(is_begun)))
