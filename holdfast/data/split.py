"""Cuts validation and test examples from a dataset, stratified by label and stable.

Where an example goes depends on its own content and the seed, not on its place: shuffling the file changes nothing,
copies of one text always stay together, and added rows leave the old ones where they were. A class too small to come
out in its share that way is cut by rank instead, so there an added row may move a neighbour.
"""

from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise

SPLITS = ("train", "validation", "test")
MOST_ROWS = 10_000  # of a split that is cut: more says little and costs an evaluation each
_TOLERANCE = 0.25
_FEWEST_ROWS = 4  # from which one goes to validation
_STARTS = {
    1: 0.0,
    2: 0.5,
}  # where in [0, 1) validation and test begin; far apart, so that a changed share moves none over
_MASK = (1 << 64) - 1


def cut(keys: Sequence[int], classes: Sequence[int], shares: Mapping[str, float], seed: int) -> bytearray:
    """Give each row the number of its split; `shares` names those to cut, such as {"test": 0.1}."""
    wanted = {SPLITS.index(name): min(share, MOST_ROWS / max(1, len(keys))) for name, share in shares.items()}
    draws = array("d", (draw(key, seed) for key in keys))
    codes = bytearray(len(keys))
    members: dict[int, array[int]] = {}
    for row, number in enumerate(classes):
        members.setdefault(number, array("q")).append(row)
    for rows in members.values():
        for code, share in wanted.items():
            free = [row for row in rows if not codes[row]]
            for row in _chosen(free, draws, len(rows) * share, share, _STARTS[code]):
                codes[row] = code
    for code, share in wanted.items():
        is_enough = len(keys) * share >= 1 or (code == 1 and len(keys) >= _FEWEST_ROWS)
        if code not in codes and is_enough:
            _fill_from_all(codes, code, members, draws, share)
    _reunite(codes, keys)
    return codes


def draw(key: int, seed: int) -> float:
    """A number in [0, 1) that depends on the key and the seed only (splitmix64)."""
    mixed = (key + 0x9E3779B97F4A7C15 * (seed + 1)) & _MASK
    mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & _MASK
    return ((mixed ^ (mixed >> 31)) >> 11) / (1 << 53)


def repeated(keys: Iterable[int]) -> set[int]:
    """The keys that come more than once."""
    return {first for first, second in pairwise(sorted(keys)) if first == second}


def _chosen(rows: Sequence[int], draws: Sequence[float], expected: float, share: float, start: float) -> list[int]:
    """The rows of one class that go to a split."""
    by_draw = [row for row in rows if start <= draws[row] < start + share]
    if expected >= 1 and by_draw and abs(len(by_draw) - expected) <= max(1.0, _TOLERANCE * expected):
        return by_draw
    return list(_ranked(rows, draws, round(expected), start))


def _ranked(rows: Sequence[int], draws: Sequence[float], quota: int, start: float) -> Iterator[int]:
    """The rows that follow `start` most closely, copies of one text together, never all of the class."""
    taken = 0
    held: list[int] = []
    for row in sorted(rows, key=lambda row: ((draws[row] - start) % 1.0, row)):
        if held and draws[row] != draws[held[0]]:
            yield from held
            taken, held = taken + len(held), []
        if taken >= quota:
            return
        held.append(row)
    # The last ones are not given: the class must keep some for training.


def _fill_from_all(
    codes: bytearray, code: int, members: Mapping[int, Sequence[int]], draws: Sequence[float], share: float
) -> None:
    """Cut a split across all classes where each alone is too small to give a row."""
    kept = {max(group, key=lambda row: (draws[row], -row)) for group in members.values()}  # one of each for training
    rows = [row for row in range(len(codes)) if not codes[row] and row not in kept]
    for row in _ranked(rows, draws, max(1, round(len(codes) * share)), _STARTS[code]):
        codes[row] = code


def _reunite(codes: bytearray, keys: Sequence[int]) -> None:
    """Copies of one text that carry different labels were cut in different classes: put them in one split."""
    first: dict[int, int] = {}
    twice = repeated(keys)
    for row, key in enumerate(keys):
        if key in twice:
            first[key] = min(first.get(key, codes[row]), codes[row])
    for row, key in enumerate(keys):
        if key in first:
            codes[row] = first[key]
