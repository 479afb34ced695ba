"""Rows that cannot be used: counted, listed, refused above a share. None is dropped silently.

Rows that lack a text, a label or an answer are ordinary, so many of them are allowed. Malformed rows are a sign that
the file is read in the wrong way, so few are.
"""

import csv
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from holdfast.core.data_warnings import DataWarning, data_warning
from holdfast.core.errors import RequestError, set_to
from holdfast.core.facts import BadRow

LISTED = 50
MOST_INCOMPLETE = 0.3  # share of rows that may lack a text, a label or an answer
_MOST_WRITTEN = 100_000  # rows in dropped.csv
_EXAMPLES = 3
_SHOWN_CHARACTERS = 80
_SHOWN_ROWS = 5
_SHOWN_DOUBTS = 3

# Why a row cannot be used, by kind.
REASONS: Mapping[str, str] = {
    # CSV
    "cells": "only {found} of {width} cells",
    "more-cells": "{found} cells instead of {width}; is there an unquoted {delimiter} in a text?",
    "repeated-header": "a repeated header row",
    "nul-byte": "the text contains a NUL byte",
    "not-utf8": "byte 0x{byte:02X} is not UTF-8",
    "open-quote": "a quote opens and never closes",
    "swallowed-rows": "a quote opens and never closes (lines {start} to {end} became one row)",
    "stray-quote": "a quote inside the text is not doubled",
    "stray-quote-rows": "a quote inside the text is not doubled (lines {start} to {end} became one row)",
    # JSON
    "not-json": "not JSON: {error}",
    "not-object": "not a JSON object",
    # Texts
    "missing": "the {what} is missing",
    "empty": "the {what} is empty",
    "not-text": "expected a text, not {found}",
    "half-character": "the {what} contains half a character (a lone surrogate)",
    # Labels
    "label-missing": "the label is missing",
    "several-labels": "expected one label, not several",
    "not-label": "expected a label, not {found}",
    "not-labels": "expected a list of labels",
    "not-zero-one": "expected 0 or 1 in the column of a label",
    "not-one-label": "exactly one of the label columns must be 1",
    "unknown-split": "expected a split: train, validation or test",
    # Conversations
    "not-messages": "expected a list of messages",
    "not-message": "expected a message as an object with role and content",
    "unknown-role": "unknown role; known are user, assistant, system and tool",
    "empty-answer": "a message of the assistant is empty",
    "no-answer": "no message is from the assistant, so there is nothing to learn",
    "not-history": "expected history as pairs of question and answer",
    "not-rendered": "{error}",
    "long-prompt": "the prompt alone has {tokens:,} tokens or more, so no answer is left to learn",
    # Two towers
    "no-positive": "no passage answers the query",
    "no-article": "the passage belongs to no article",
    "not-score": "expected a number as score",
    "no-score": "the score is missing",
    "duplicate-id": "duplicate id",
    "unknown-id": "the id is not in {where}.jsonl",
    "zero-vector": "the vector is all zeros",
    "not-finite": "the vector contains NaN or infinity",
}
# The kinds of rows that lack something; rows of all other kinds are malformed.
INCOMPLETE = frozenset(
    ("missing", "empty", "label-missing", "empty-answer", "no-answer", "no-positive", "no-article", "no-score")
)


class BadValue(Exception):
    """A value that makes its row unusable; becomes a bad row. `details` are what the reason names."""

    def __init__(self, column: str, value: object, kind: str, **details: object):
        super().__init__(kind)
        self.column, self.value, self.kind, self.details = column, value, kind, details


class BadRows:
    """Collects what is wrong with the rows of a dataset."""

    def __init__(self, max_share: float):
        self.count = 0
        self.incomplete = 0  # of them, rows that only lack something
        self._whole = 0  # rows, the usable ones included
        self._malformed_rows: list[BadRow] = []  # the first ones
        self._incomplete_rows: list[BadRow] = []
        self._dropped: list[tuple[str, int, str, str]] = []  # file, row, column and reason, in reading order
        self._doubts: list[DataWarning] = []  # about rows that are used but may not be what they seem
        self._doubt_count = 0
        self._reasons: Counter[tuple[bool, str]] = Counter()  # (incomplete, reason)
        self._max_share = max_share

    @property
    def listed(self) -> list[BadRow]:
        """The first bad rows, malformed ones before those that lack something."""
        return [*self._malformed_rows, *self._incomplete_rows][:LISTED]

    def add(
        self,
        file: Path,
        row: int,
        kind: str,
        *,
        column: str = "",
        value: object = "",
        rows: int = 1,
        details: Mapping[str, object] = {},
    ) -> None:
        """Note a bad row; `rows` is more than one where an unclosed quote swallowed others."""
        reason = REASONS[kind].format_map(details)
        is_incomplete = kind in INCOMPLETE
        self.count += rows
        self.incomplete += rows if is_incomplete else 0
        self._reasons[is_incomplete, reason] += rows
        if len(self._dropped) < _MOST_WRITTEN:
            self._dropped.append((file.name, row, column, reason))
        first = self._incomplete_rows if is_incomplete else self._malformed_rows
        if len(first) < LISTED:
            first.append(
                BadRow(file=file.name, row=row, column=column, value=shortened(value), kind=kind, reason=reason)
            )

    def add_value(self, file: Path, row: int, bad: BadValue) -> None:
        """Note a row that cannot be used because of one value."""
        self.add(file, row, bad.kind, column=bad.column, value=bad.value, details=bad.details)

    def absorb(self, others: "BadRows", good_rows: int) -> None:
        """Take over rows that turned out to be unusable later; too many of them are refused."""
        others._max_share = self._max_share
        others.refuse_many(good_rows)
        self.count += others.count
        self.incomplete += others.incomplete
        self._reasons.update(others._reasons)
        self._malformed_rows += others._malformed_rows
        self._incomplete_rows += others._incomplete_rows
        self._dropped += others._dropped

    def doubt(self, kind: str, file: Path, row: int, **values: str | int) -> None:
        """Note a row that is used although it looks odd."""
        self._doubt_count += 1
        if len(self._doubts) < _SHOWN_DOUBTS:
            self._doubts.append(data_warning(kind, file=file.name, row=row, **values))

    def warnings(self) -> list[DataWarning]:
        """What the owner of the data should know about its rows."""
        found = []
        if malformed := self.count - self.incomplete:
            found.append(data_warning("bad-rows", rows=malformed, reasons=self._commonest(incomplete=False)))
        if self.incomplete:
            examples = tuple(f"{one.file}, row {one.row}: {one.reason}" for one in self._incomplete_rows[:_EXAMPLES])
            share = self.incomplete / max(self._whole, self.count)
            reasons = self._commonest(incomplete=True)
            found.append(
                data_warning("incomplete-rows", rows=self.incomplete, share=share, reasons=reasons, examples=examples)
            )
        found += self._doubts
        if more := self._doubt_count - len(self._doubts):
            found.append(data_warning("more-quotes", rows=more))
        return found

    def refuse_many(self, good_rows: int) -> None:
        """Raise when more than the allowed share of the rows is malformed, or lacks something."""
        whole = self._whole = good_rows + self.count
        malformed = self.count - self.incomplete
        if malformed and malformed > self._max_share * whole:
            raise self._too_many(malformed, whole, self._max_share, self._malformed_rows, "are malformed")
        most = max(MOST_INCOMPLETE, self._max_share)
        if self.incomplete and self.incomplete > most * whole:
            raise self._too_many(self.incomplete, whole, most, self._incomplete_rows, "lack something")

    def _too_many(self, rows: int, whole: int, most: float, first: list[BadRow], what: str) -> RequestError:
        share = rows / whole
        seen = [describe(bad) for bad in first[:_SHOWN_ROWS]]
        if rows > _SHOWN_ROWS:
            seen.append(f"and {rows - _SHOWN_ROWS:,} more")
        leave_out = set_to("max_bad_rows", min(1.0, int(share * 100 + 1) / 100), note="leaves these rows out")
        return RequestError(
            f"{rows:,} of {whole:,} rows ({share:.1%}) {what}; the limit is {most:.1%}",
            found="\n".join(seen),
            try_next=("correct these rows", *((leave_out,) if whole > self.count else ())),
            setting="max_bad_rows",
        )

    def most_common(self) -> str:
        """The commonest reason; empty where no row is bad."""
        return self._reasons.most_common(1)[0][0][1] if self._reasons else ""

    def write(self, path: Path) -> None:
        """Write the dropped rows as a table of file, row, column and reason; without any, no file is written."""
        if not self._dropped:
            return
        with path.open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(("file", "row", "column", "reason"))
            writer.writerows(self._dropped)

    def _commonest(self, *, incomplete: bool) -> tuple[str, ...]:
        alike = [(reason, rows) for (kind, reason), rows in self._reasons.most_common() if kind is incomplete]
        return tuple(f"{reason} ({rows:,})" for reason, rows in alike[:3])


def describe(bad: BadRow) -> str:
    """One bad row on one line: file, row, column, reason, value."""
    where = f"{bad.file}, row {bad.row}" + (f", column {bad.column!r}" if bad.column else "")
    return f"{where}: {bad.reason}" + (f"; found {bad.value}" if bad.value else "")


def shortened(value: object) -> str:
    """A value as found, cut to one short line."""
    text = "" if value == "" else repr(value)
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}... ({len(text):,} characters)"
