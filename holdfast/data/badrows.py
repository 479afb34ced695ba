"""Rows that cannot be used: counted, listed, refused above a share. None is dropped without a word."""

from collections import Counter
from pathlib import Path

from holdfast.core.errors import RequestError
from holdfast.core.facts import BadRow

LISTED = 50
_SHOWN_CHARACTERS = 80


class BadValue(Exception):
    """A value that a row cannot be used with; becomes a bad row."""

    def __init__(self, column: str, value: object, reason: str):
        super().__init__(reason)
        self.column, self.value, self.reason = column, value, reason


class BadRows:
    """Collects what is wrong with the rows of a dataset."""

    def __init__(self, max_share: float):
        self.listed: list[BadRow] = []
        self.count = 0
        self.reasons: Counter[str] = Counter()
        self.doubts: dict[str, None] = {}  # rows that are used, and may not be what they seem
        self._max_share = max_share

    def add(self, file: Path, row: int, reason: str, *, column: str = "", value: object = "", rows: int = 1) -> None:
        """Note a bad row; `rows` is more than one where an unclosed quote swallowed others."""
        self.count += rows
        self.reasons[reason] += rows
        if len(self.listed) < LISTED:
            self.listed.append(BadRow(file=file.name, row=row, column=column, value=shortened(value), reason=reason))

    def doubt(self, file: Path, row: int, words: str) -> None:
        """Note a row that is used although it looks odd."""
        if len(self.doubts) < LISTED:
            self.doubts[f"{file.name}, row {row}: {words}"] = None

    def add_value(self, file: Path, row: int, bad: BadValue) -> None:
        """Note a row that cannot be used because of one value."""
        self.add(file, row, bad.reason, column=bad.column, value=bad.value)

    def refuse_many(self, good_rows: int) -> None:
        """Raise when the bad rows are more than the allowed share."""
        whole = good_rows + self.count
        if not self.count or self.count <= self._max_share * whole:
            return
        share = self.count / whole
        raise RequestError(
            f"{self.count:,} of {whole:,} rows cannot be used, {share:.1%}; up to {self._max_share:.1%} is let pass",
            seen="\n".join(describe(bad) for bad in self.listed[:5])
            + (f"\nand {self.count - 5:,} more" if self.count > 5 else ""),
            try_next=("mend those rows",)
            + ((f"--max-bad-rows {_rounded_up(share):g} leaves them out and goes on",) if good_rows else ()),
        )


def describe(bad: BadRow) -> str:
    """Write one bad row in a line: file, row, column, value, reason."""
    where = f"{bad.file}, row {bad.row}" + (f", column {bad.column!r}" if bad.column else "")
    return f"{where}: {bad.reason}" + (f", found {bad.value}" if bad.value else "")


def shortened(value: object) -> str:
    """Write a value as found, cut to one short line."""
    text = "" if value == "" else repr(value)
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}... ({len(text):,} characters)"


def _rounded_up(share: float) -> float:
    return min(1.0, int(share * 100 + 1) / 100)
