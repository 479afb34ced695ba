"""How labels are written: one value, a list, names joined by a separator, or a column of 0 and 1 for each label."""

import ast
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

import msgspec

from holdfast.core.plan import Choice
from holdfast.data.badrows import BadValue
from holdfast.data.profile import ColumnProfile

_MARKS = ("|", ";", ",")
_LIST = re.compile(r"\s*\[.*\]\s*", re.DOTALL)
_NO_LABEL = frozenset(("", "nan", "null", "<na>", "#n/a"))  # as programs write a missing value
_PLACEHOLDERS = frozenset(("n/a", "n.a.", "na", "none", "-", "--", "?"))  # as people write it; may be a class
_RARE = 0.1  # share of the rows, from which "N/A" is a class among others: yes, no, N/A
_NUMBER = re.compile(r"[-+]?\d+(\.\d+)?")
_WHOLE = re.compile(r"-?\d+\.0+")
_ON = frozenset((1, "1", "1.0", "true", "True", "TRUE"))
_OFF = frozenset((0, "0", "0.0", "false", "False", "FALSE", "", None))


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelForm:
    """How labels are read from a row."""

    kind: Literal["one", "list", "joined", "columns"]
    columns: tuple[str, ...]
    is_multi: bool
    mark: str = ""  # between joined names
    whole_numbers: bool = False  # 1.0 is the label 1
    missing: frozenset[str] = _NO_LABEL  # in lower case: values that mean that there is no label

    def read(self, row: Mapping[str, object]) -> tuple[str, ...]:
        """The labels of a row; BadValue when a label is missing or invalid."""
        if self.kind == "columns":
            return self._from_columns(row)
        column = self.columns[0]
        value = row.get(column)
        names = self._names(column, value)
        if self.is_multi:
            return tuple(dict.fromkeys(names))
        if len(names) != 1:
            raise BadValue(column, value, "several-labels" if names else "label-missing")
        return names

    def _names(self, column: str, value: object) -> tuple[str, ...]:
        if value is None or value != value or (isinstance(value, str) and value.strip().lower() in self.missing):
            return ()
        items: list[object] | None = [value]
        if self.kind == "list":
            items = as_list(value)
        elif self.kind == "joined" and isinstance(value, str):
            items = [*value.split(self.mark)]
        if items is None:
            raise BadValue(column, value, "not-labels")
        names = (self._name(column, item) for item in items)
        return tuple(name for name in names if name)

    def _name(self, column: str, value: object) -> str:
        if value is None or value != value:  # NaN differs from itself
            return ""
        if isinstance(value, bool):
            return str(value).lower()
        if isinstance(value, float) and value.is_integer():
            return str(int(value))
        if isinstance(value, (list, dict)):
            raise BadValue(column, value, "not-label", found="a list" if isinstance(value, list) else "an object")
        name = str(value).strip()
        if self.whole_numbers and _WHOLE.fullmatch(name):
            name = name.partition(".")[0]
        return _readable(column, name)

    def _from_columns(self, row: Mapping[str, object]) -> tuple[str, ...]:
        names = []
        for column in self.columns:
            value = row.get(column)
            value = None if value != value else value
            if isinstance(value, (list, dict)) or (value not in _ON and value not in _OFF):
                raise BadValue(column, value, "not-zero-one")
            if value in _ON:
                names.append(column)
        if not self.is_multi and len(names) != 1:
            raise BadValue(self.columns[0], len(names), "not-one-label")
        return tuple(names)


def find_label_form(profile: ColumnProfile, multi_label: bool | None) -> tuple[LabelForm, Choice[str]]:
    """Find out how the labels of one column are written."""
    name = profile.name
    missing = _missing(profile)
    values = {value: count for value, count in profile.values.items() if str(value).strip().lower() not in missing}
    texts = Counter({value.strip(): count for value, count in values.items() if isinstance(value, str)})
    if "list" in profile.kinds or (texts and all(_LIST.fullmatch(text) for text in texts)):
        counts = {len(as_list(list(value) if isinstance(value, tuple) else value) or ()) for value in values}
        is_multi = multi_label if multi_label is not None else counts != {1}
        because = "the column has lists" + ("" if is_multi else " of one label each")
        form = LabelForm(kind="list", columns=(name,), is_multi=is_multi, missing=missing)
        return form, Choice(_form(is_multi), because)
    mark = _mark_between(texts, is_plural=name.lower().rstrip().endswith("s"), wanted=multi_label)
    if mark and multi_label is not False:
        joined = sum(count for text, count in texts.items() if mark in text)
        share = joined / max(1, sum(texts.values()))
        because = f"{share:.0%} of the values are several names joined by {mark!r}"
        form = LabelForm(kind="joined", columns=(name,), is_multi=True, mark=mark, missing=missing)
        return form, Choice(_form(True), because)
    whole = bool(texts) and all(_WHOLE.fullmatch(text) for text in texts)
    if multi_label:
        form = LabelForm(kind="joined", columns=(name,), is_multi=True, mark=",", whole_numbers=whole, missing=missing)
        return form, Choice(_form(True), "as requested; names are separated by ','")
    form = LabelForm(kind="one", columns=(name,), is_multi=False, whole_numbers=whole, missing=missing)
    return form, Choice(_form(False), f"every row has one of {len(values):,} values")


def _missing(profile: ColumnProfile) -> frozenset[str]:
    """The values of a label column that mean that there is no label, in lower case.

    "N/A" and the like are among them where every label is a number, and where they are rare among words. "None" and
    "NA" among words are classes: "none, mild, severe", or the code of a country.
    """
    counts = Counter[str]()
    for value, count in profile.values.items():
        counts[str(value).strip().lower()] += count
    labels = [name for name in counts if name not in _NO_LABEL | _PLACEHOLDERS]
    if labels and all(_NUMBER.fullmatch(name) for name in labels):
        return _NO_LABEL | _PLACEHOLDERS
    if len(labels) < 2:
        return _NO_LABEL
    few = _RARE * counts.total()
    return _NO_LABEL | {name for name in _PLACEHOLDERS - {"na", "none"} if counts[name] < few}


def form_of_columns(columns: Iterable[ColumnProfile], multi_label: bool | None) -> tuple[LabelForm, Choice[str]]:
    """Labels that each have their own column of 0 and 1."""
    names = tuple(column.name for column in columns)
    is_multi = True if multi_label is None else multi_label
    form = LabelForm(kind="columns", columns=names, is_multi=is_multi)
    return form, Choice(_form(is_multi), f"{len(names)} columns have only 0 and 1: {', '.join(names[:6])}")


def in_order(names: Iterable[str]) -> list[str]:
    """Labels in the order of their numbers: by value where all are whole numbers, otherwise by name."""
    found = list(names)
    if all(re.fullmatch(r"-?\d{1,18}", name) for name in found):
        return sorted(found, key=lambda name: (int(name), name))
    return sorted(found)


def as_list(value: object) -> list[object] | None:
    """A list, or one written as text the JSON or the Python way; an empty cell is an empty list."""
    if isinstance(value, list):
        return value
    if value is None or value == "":
        return []
    if not isinstance(value, str) or not _LIST.fullmatch(value):
        return None
    try:
        parsed = msgspec.json.decode(value)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        try:
            parsed = ast.literal_eval(value.strip())
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            return None
    return list(parsed) if isinstance(parsed, list) else None


def _mark_between(texts: Counter[str], *, is_plural: bool, wanted: bool | None) -> str:
    """The separator between several names in one value; empty when every value is one name."""
    for mark in _MARKS:
        joined = [text for text in texts if mark in text]
        if not joined:
            continue
        parts = Counter(part.strip() for text in texts for part in set(text.split(mark)) if part.strip())
        alone = {text for text in texts if mark not in text}
        # A name that is part of several values, or stands alone elsewhere, is a label; "Smith, John" is not two.
        recurring = sum(count > 1 or part in alone for part, count in parts.items()) / max(1, len(parts))
        enough = 0.5 if wanted or is_plural or mark == "|" else 0.8
        if recurring >= enough and (wanted or is_plural or len(parts) < len(texts)):
            return mark
    return ""


def _form(is_multi: bool) -> str:
    return "several labels" if is_multi else "one label"


def _readable(column: str, name: str) -> str:
    try:
        name.encode()
    except UnicodeEncodeError:
        raise BadValue(column, name, "half-character", what="label") from None
    return name
