"""What each column contains: the length, number and kind of its values."""

from collections import Counter
from collections.abc import Iterable

from holdfast.data.csvrows import Row

MOST_VALUES = 5000  # more different values than this are not counted
_LONG = 200  # a longer value is not a label
_MEASURED_ROWS = 20_000

_NO_VALUE = frozenset(("nan", "NaN", "<NA>", "#N/A"))  # as programs write a missing value
_ZERO_ONE = frozenset(("0", "1", "0.0", "1.0", "true", "false", "True", "False", "", 0, 1, 0.0, 1.0))


class ColumnProfile:
    """What one column contains."""

    def __init__(self, name: str):
        self.name = name
        self.filled = 0
        self.values: Counter[object] = Counter()  # lists as tuples
        self.has_many = False  # different values, of which only the first are counted
        self.kinds: set[str] = set()
        self._characters = 0
        self._words = 0
        self._measured = 0

    @property
    def mean_characters(self) -> float:
        """Length of a filled value."""
        return self._characters / max(1, self._measured)

    @property
    def mean_words(self) -> float:
        """Words of a filled value."""
        return self._words / max(1, self._measured)

    @property
    def distinct(self) -> int:
        """Number of different values that were counted."""
        return len(self.values)

    @property
    def repeats(self) -> float:
        """How often a counted value occurs, on average."""
        return sum(self.values.values()) / max(1, self.distinct)

    @property
    def is_done(self) -> bool:
        """True when more values would change nothing."""
        return self.has_many and self._measured >= _MEASURED_ROWS

    @property
    def is_zero_one(self) -> bool:
        """True when the column has both zeros and ones, or both true and false, and nothing else."""
        if self.has_many or not 2 <= self.distinct <= 4:
            return False
        return all(isinstance(value, (str, int, float)) and value in _ZERO_ONE for value in self.values)

    @property
    def looks_like_labels(self) -> bool:
        """True when a few short values are repeated."""
        if self.has_many or self.distinct < 2 or "object" in self.kinds:
            return False
        return self.distinct <= max(2, self.filled // 2) and self.mean_characters <= _LONG / 2

    @property
    def looks_like_text(self) -> bool:
        """True when the values are strings that read like words."""
        return self.kinds == {"text"} and self.mean_words >= 1.5 and self.filled > 0

    def add(self, value: object) -> None:
        """Count one value."""
        if value is None or value == "" or value != value:  # NaN differs from itself
            return
        if isinstance(value, str) and (value.isspace() or value in _NO_VALUE):
            return
        self.filled += 1
        if self._measured < _MEASURED_ROWS:
            self._measure(value)
        if self.has_many:
            return
        key = tuple(map(str, value)) if isinstance(value, list) else value
        if isinstance(key, str) and len(key) > _LONG:
            key = hash(key)
        if isinstance(key, dict):
            return
        if key not in self.values and len(self.values) >= MOST_VALUES:
            self.has_many = True
            return
        self.values[key] += 1

    def _measure(self, value: object) -> None:
        self._measured += 1
        kind = _kind(value)
        self.kinds.add(kind)
        text = value if isinstance(value, str) else str(value)
        self._characters += len(text)
        self._words += text.count(" ") + 1


class ColumnProfiles:
    """What the columns of some rows contain."""

    def __init__(self) -> None:
        self.profiles: dict[str, ColumnProfile] = {}
        self._open: list[ColumnProfile] = []

    def add(self, rows: Iterable[Row]) -> None:
        """Count the values of more rows."""
        profiles = self.profiles
        for _, row in rows:
            if not row.keys() <= profiles.keys():
                for name in row:
                    if name not in profiles:
                        profiles[name] = ColumnProfile(name)
                        self._open.append(profiles[name])
            done = False
            for profile in self._open:
                profile.add(row.get(profile.name))
                done |= profile.is_done
            if done:
                self._open = [profile for profile in self._open if not profile.is_done]


def _kind(value: object) -> str:
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, (int, float)):
        return "number"
    if isinstance(value, list):
        return "list"
    if isinstance(value, dict):
        return "object"
    return "number" if _is_number(value) else "text"


def _is_number(value: object) -> bool:
    try:
        float(str(value))
    except ValueError:
        return False
    return True
