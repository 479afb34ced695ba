"""Finds rows by their id in little memory: hashes in two flat arrays, looked up by halving."""

from array import array
from bisect import bisect_left
from collections.abc import Sequence

from holdfast.data.formats.example import exact_hash


class IdIndex:
    """The place of each id."""

    def __init__(self, hashes: Sequence[int]):
        order = sorted(range(len(hashes)), key=hashes.__getitem__)
        self._places = array("Q", order)
        self._hashes = array("Q", (hashes[at] for at in order))

    def __len__(self) -> int:
        return len(self._hashes)

    def find(self, name: str) -> int | None:
        """The place of an id; None when it is not there."""
        return self.find_hash(exact_hash(name))

    def find_hash(self, wanted: int) -> int | None:
        """The place of an id whose hash is known."""
        at = bisect_left(self._hashes, wanted)
        if at < len(self._hashes) and self._hashes[at] == wanted:
            return self._places[at]
        return None
