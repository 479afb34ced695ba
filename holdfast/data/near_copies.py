"""Finds texts of validation and test that are nearly the same as a training text, with MinHash.

Each text of enough words becomes 24 numbers: the smallest of its triples of words under 24 hash functions. Two texts
share each number with the probability of their overlap (the Jaccard index of their triples), so equal numbers estimate
it. Only texts that share three numbers of one of eight bands are compared. The numbers wait in a temporary file, so
memory does not grow with the data: 96 bytes of disk for each text.
"""

import tempfile
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from numpy.typing import NDArray

_BANDS, _IN_BAND = 8, 3
_HASHES = _BANDS * _IN_BAND
_ALIKE = 0.75  # share of equal numbers from which two texts are near-copies
_FEWEST_TRIPLES = 6  # shorter texts are alike by chance
_LONGEST_BYTES = 8000  # of a text that are compared
_BUFFER_BYTES = 1 << 21
_CHUNK_ROWS = 1 << 16
_TOO_SHORT = 0xFFFFFFFF  # in place of the numbers of a text
_SEED = 20_240_917


class NearCopy(NamedTuple):
    """A held-out text and a training text that is nearly the same, by their numbers in reading order."""

    held: int
    trained: int


class NearCopies:
    """Collects texts, and finds the near-copies across splits. Without numpy it finds none."""

    def __init__(self) -> None:
        try:
            import numpy
        except ImportError:
            self._numpy: Any = None
            return
        self._numpy = numpy
        draws = numpy.random.default_rng(_SEED)
        self._letters = draws.integers(1, 1 << 63, size=64, dtype=numpy.uint64) | numpy.uint64(1)
        self._mixers = draws.integers(1, 1 << 63, size=_HASHES, dtype=numpy.uint64) | numpy.uint64(1)
        self._is_gap = numpy.array([not chr(byte).isalnum() and byte < 128 for byte in range(256)])
        self._bytes = bytearray()
        self._ends: list[int] = []
        self._count = 0
        self._file = tempfile.TemporaryFile(prefix="holdfast-")  # noqa: SIM115  (open as long as this object)

    def add(self, text: str) -> None:
        """Take one more text."""
        if self._numpy is None:
            return
        self._bytes += text[:_LONGEST_BYTES].lower().encode("utf-8", "replace")[:_LONGEST_BYTES]
        self._bytes += b" "
        self._ends.append(len(self._bytes))
        if len(self._bytes) > _BUFFER_BYTES:
            self._flush()

    def across(self, splits: bytearray, keys: Sequence[int]) -> list[NearCopy]:
        """For each held-out text with a near-copy in training, one such copy. Exact copies are not listed."""
        if self._numpy is None or not any(0 < split < 3 for split in splits):
            return []
        self._flush()
        np = self._numpy
        codes, contents = np.frombuffer(splits, np.uint8), np.frombuffer(keys, np.uint64)
        held = np.flatnonzero((codes == 1) | (codes == 2))
        held = held[~np.isin(contents[held], contents[codes == 0])]
        marks = np.concatenate(
            [chunk[held[(held >= at) & (held < at + len(chunk))] - at] for at, chunk in self._read()]
        )
        open_ = np.flatnonzero(marks[:, 0] != _TOO_SHORT)
        found: dict[int, int] = {}
        for at, chunk in self._read():
            if not len(open_):
                break
            training = np.flatnonzero((codes[at : at + len(chunk)] == 0) & (chunk[:, 0] != _TOO_SHORT))
            matched: set[int] = set()
            for band in range(_BANDS):
                columns = slice(band * _IN_BAND, (band + 1) * _IN_BAND)
                theirs, mine = self._keys(chunk[training, columns]), self._keys(marks[open_, columns])
                for one, other in _pairs(np, mine, theirs):
                    alike = (marks[open_[one]] == chunk[training[other]]).mean(axis=1) >= _ALIKE
                    for number, copy in zip(open_[one][alike].tolist(), training[other][alike].tolist(), strict=True):
                        found.setdefault(int(held[number]), at + copy)
                        matched.add(number)
            open_ = open_[~np.isin(open_, list(matched))] if matched else open_
        return [NearCopy(held, copy) for held, copy in sorted(found.items())]

    def _flush(self) -> None:
        """Write the numbers of the texts in the buffer."""
        np = self._numpy
        if not self._ends:
            return
        letters = np.frombuffer(self._bytes, np.uint8)
        gaps = self._is_gap[letters]
        before = np.concatenate(([True], gaps[:-1]))
        # A letter of a script without spaces, of three bytes or more, is a word of its own.
        starts = np.flatnonzero(~gaps & (before | (letters >= 0xE0)))
        rows = len(self._ends)
        marks = np.full((rows, _HASHES), _TOO_SHORT, np.uint32)
        if len(starts):
            place = np.arange(len(letters))  # of each letter in its word
            place[starts[0] :] -= np.repeat(starts, np.diff(np.append(starts, len(letters))))
            values = (letters.astype(np.uint64) + np.uint64(1)) * self._letters[place & 63]
            values[gaps] = 0
            words = _mixed(np, np.add.reduceat(values, starts))
            owner = np.searchsorted(np.array(self._ends), starts, side="right")
            triples = words[:-2] + words[1:-1] * np.uint64(3) + words[2:] * np.uint64(7)
            inside = owner[:-2] == owner[2:]
            triples, owner = _mixed(np, triples[inside]), owner[:-2][inside]
            if len(owner):
                firsts = np.flatnonzero(np.concatenate(([True], owner[1:] != owner[:-1])))
                counts = np.diff(np.append(firsts, len(owner)))
                enough = counts >= _FEWEST_TRIPLES
                for at, mixer in enumerate(self._mixers):
                    hashed = (triples * mixer) >> np.uint64(32)
                    marks[owner[firsts[enough]], at] = np.minimum.reduceat(hashed, firsts)[enough]
        self._file.write(marks.tobytes())
        self._count += rows
        self._bytes, self._ends = bytearray(), []

    def _read(self) -> "Iterator[tuple[int, NDArray[Any]]]":
        self._file.seek(0)
        for at in range(0, self._count, _CHUNK_ROWS):
            content = self._file.read(_CHUNK_ROWS * _HASHES * 4)
            yield at, self._numpy.frombuffer(content, self._numpy.uint32).reshape(-1, _HASHES)

    def _keys(self, bands: "NDArray[Any]") -> Any:
        np = self._numpy
        wide = bands.astype(np.uint64)
        return _mixed(np, wide[:, 0] + wide[:, 1] * np.uint64(0x9E3779B97F4A7C15) + (wide[:, 2] << np.uint64(21)))


def _pairs(np: Any, mine: "NDArray[Any]", theirs: "NDArray[Any]") -> "Iterator[tuple[NDArray[Any], NDArray[Any]]]":
    """Places of equal keys; of a key that many have, only some of the pairs, so that time stays bounded."""
    order = np.argsort(theirs, kind="stable")
    ordered = theirs[order]
    start, end = np.searchsorted(ordered, mine, "left"), np.searchsorted(ordered, mine, "right")
    for step in range(8):
        has_one = np.flatnonzero(start + step < end)
        if not len(has_one):
            return
        yield has_one, order[start[has_one] + step]


def _mixed(np: Any, values: Any) -> Any:
    values = (values ^ (values >> np.uint64(31))) * np.uint64(0x7FB5D329728EA185)
    return values ^ (values >> np.uint64(27))
