"""Splits off validation and test examples, stratified by label and stable.

The split of an example depends on its content and the seed, not on its position: shuffling the file changes nothing,
copies of a text stay together, and added rows leave the others where they were. A class too small to get its share that
way is split by rank instead, so there an added row may move another one.
"""

from array import array
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise

from holdfast.core.errors import RequestError, leave_out, set_to
from holdfast.core.facts import SPLITS
from holdfast.core.plan import Choice
from holdfast.data.data_request import DataRequest

AS_GIVEN = Choice("as given", "the data says which rows are for which split")
MOST_ROWS = 10_000  # of a split made here: more rows add little and cost time in every evaluation
_TOLERANCE = 0.25  # how far a class may be from its share before its rows are ranked instead
FEWEST_ROWS = 4  # at least this many, and one goes to validation
# Where in [0, 1) validation and test begin: far apart, so that another share moves no row from one to the other.
_STARTS = {1: 0.0, 2: 0.5}
_MASK = (1 << 64) - 1


def split_off(
    splits: bytearray, keys: Sequence[int], classes: Sequence[int], given: Collection[str], request: DataRequest
) -> Choice[str]:
    """Split validation and test off the training rows where the data does not bring them; says what was done.

    `splits` has the number of each row's split and is changed in place. Where the data brings validation rows, its
    owner has decided what is held out, so no test split is made either.
    """
    if request.folds:
        return _split_fold(splits, keys, classes, given, request)
    shares = {} if "validation" in given else {"validation": request.validation_share}
    if not {"validation", "test"} & set(given):
        shares["test"] = request.test_share
    shares = {name: share for name, share in shares.items() if share > 0}
    if not shares:
        return AS_GIVEN
    training = array("q", (row for row in range(len(splits)) if not splits[row]))
    codes = cut([keys[row] for row in training], [classes[row] for row in training], shares, request.seed)
    for row, code in zip(training, codes, strict=True):
        splits[row] = code
    real = {name: codes.count(SPLITS.index(name)) for name in shares}
    expected = {name: len(training) * share for name, share in shares.items()}
    capped = f", at most {MOST_ROWS:,} each" if len(training) * max(shares.values()) > MOST_ROWS else ""
    stratified = ", stratified by label" if len(set(classes)) > 1 else ""
    because = f"not given, so split by content and seed {request.seed}{stratified}"
    if not capped and any(abs(real[name] - rows) > max(1.0, _TOLERANCE * rows) for name, rows in expected.items()):
        requested = " and ".join(f"{share:.0%}" for share in shares.values())
        because += f"; not {requested}, because copies of a text stay together and each class keeps rows for training"
        shares = {name: rows / len(training) for name, rows in real.items()}
    text = " and ".join(f"{share:.0%} for {name}" for name, share in shares.items())
    return Choice(f"{text}{capped}", because)


def _split_fold(
    splits: bytearray, keys: Sequence[int], classes: Sequence[int], given: Collection[str], request: DataRequest
) -> Choice[str]:
    """Test on one of several equal parts of the rows, and take validation from the others."""
    if brought := {"validation", "test"} & set(given):
        raise RequestError(
            "folds need all rows for training, but the data brings its own splits",
            found=", ".join(sorted(brought)),
            try_next=("give only the file with the training rows", leave_out("folds")),
            setting="folds",
        )
    usable = [row for row in range(len(splits)) if not splits[row]]
    parts = folds_of([keys[row] for row in usable], [classes[row] for row in usable], request.folds, request.seed)
    others = [row for row, part in zip(usable, parts, strict=True) if part != request.fold - 1]
    if not others or len(others) == len(usable):
        raise RequestError(
            f"there are too few rows for {request.folds} folds",
            found=f"{len(usable):,} rows, of which fold {request.fold} would have {len(usable) - len(others):,}",
            try_next=(set_to("folds", 2),),
            setting="folds",
        )
    for row, part in zip(usable, parts, strict=True):
        splits[row] = SPLITS.index("test") if part == request.fold - 1 else 0
    if request.validation_share:
        shares = {"validation": request.validation_share}
        codes = cut([keys[row] for row in others], [classes[row] for row in others], shares, request.seed)
        for row, code in zip(others, codes, strict=True):
            splits[row] = code
    text = f"fold {request.fold} of {request.folds} for test, {request.validation_share:.0%} of the rest for validation"
    return Choice(text, f"as requested, split by content and seed {request.seed}")


def folds_of(keys: Sequence[int], classes: Sequence[int], folds: int, seed: int) -> bytearray:
    """The fold of each row, from 0: as many of each class in every fold, copies of a text together."""
    members: dict[int, list[int]] = {}
    for row, number in enumerate(classes):
        members.setdefault(number, []).append(row)
    parts = bytearray(len(keys))
    for turn, rows in enumerate(members.values()):
        ordered = sorted(rows, key=lambda row: (draw(keys[row], seed), row))
        for rank, row in enumerate(ordered):
            parts[row] = (rank * folds // len(ordered) + turn) % folds
    _reunite(parts, keys)
    return parts


def cut(keys: Sequence[int], classes: Sequence[int], shares: Mapping[str, float], seed: int) -> bytearray:
    """The number of each row's split; `shares` names the splits to make, such as {"test": 0.1}."""
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
        is_enough = len(keys) * share >= 1 or (code == 1 and len(keys) >= FEWEST_ROWS)
        if code not in codes and is_enough:
            _fill_from_all(codes, code, members, draws, share)
    _reunite(codes, keys)
    return codes


def draw(key: int, seed: int) -> float:
    """A number in [0, 1) that depends only on the key and the seed (splitmix64)."""
    mixed = (key + 0x9E3779B97F4A7C15 * (seed + 1)) & _MASK
    mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & _MASK
    return ((mixed ^ (mixed >> 31)) >> 11) / (1 << 53)


def repeated(keys: Iterable[int]) -> set[int]:
    """The keys that occur more than once."""
    return {first for first, second in pairwise(sorted(keys)) if first == second}


def _chosen(rows: Sequence[int], draws: Sequence[float], expected: float, share: float, start: float) -> list[int]:
    """The rows of one class that go to a split."""
    by_draw = [row for row in rows if start <= draws[row] < start + share]
    if expected >= 1 and by_draw and abs(len(by_draw) - expected) <= max(1.0, _TOLERANCE * expected):
        return by_draw
    return list(_ranked(rows, draws, round(expected), start))


def _ranked(rows: Sequence[int], draws: Sequence[float], quota: int, start: float) -> Iterator[int]:
    """The first rows from `start` on, copies of one text together, never the whole class."""
    taken = 0
    held: list[int] = []
    for row in sorted(rows, key=lambda row: ((draws[row] - start) % 1.0, row)):
        if held and draws[row] != draws[held[0]]:
            yield from held
            taken, held = taken + len(held), []
        if taken >= quota:
            return
        held.append(row)
    # The last group is never taken: the class must keep some rows for training.


def _fill_from_all(
    codes: bytearray, code: int, members: Mapping[int, Sequence[int]], draws: Sequence[float], share: float
) -> None:
    """Make a split from all classes together when each alone is too small to give a row."""
    kept = {max(group, key=lambda row: (draws[row], -row)) for group in members.values()}  # one of each for training
    rows = [row for row in range(len(codes)) if not codes[row] and row not in kept]
    for row in _ranked(rows, draws, max(1, round(len(codes) * share)), _STARTS[code]):
        codes[row] = code


def _reunite(codes: bytearray, keys: Sequence[int]) -> None:
    """Put copies of a text in one split, also those that have different labels and so were split with other classes."""
    first: dict[int, int] = {}
    twice = repeated(keys)
    for row, key in enumerate(keys):
        if key in twice:
            first[key] = min(first.get(key, codes[row]), codes[row])
    for row, key in enumerate(keys):
        if key in first:
            codes[row] = first[key]
