"""Finds the format of a text file from its beginning: JSON, plain text, or a table with its delimiter and header."""

import csv
import re
from collections import Counter
from dataclasses import dataclass

from holdfast.core.plan import Choice
from holdfast.data.names import is_known

DELIMITERS = {",": "comma", ";": "semicolon", "\t": "tab", "|": "pipe"}
_NO_DELIMITER = "\x1f"  # the unit separator, which nobody types
_ROWS = 2000
_CONSISTENT = 0.8
_LONG_NAME = 64
_NUMBER = re.compile(r"\s*[-+]?\d+([.,]\d+)?([eE][-+]?\d+)?\s*")
_JSON_ROW = re.compile(r"\s*\{.*\}\s*")
_EXCEL_HINT = re.compile(r"sep=(.)\r?\n")


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """How a table's rows are written."""

    delimiter: Choice[str]
    quoting: bool
    has_header: Choice[bool]
    hint_line: bool = False  # the file opens with Excel's "sep=;"

    @property
    def cuts(self) -> bool:
        """False when no delimiter splits the lines evenly, so each line is one cell."""
        return self.delimiter.value != _NO_DELIMITER


def kind_of_text(sample: str, extension: str) -> Choice[str]:
    """The format of a text file: "csv", "json", "jsonl" or "text". The extension only settles doubts."""
    start = sample.lstrip("\ufeff \t\r\n")
    if start.startswith("{"):
        first_line = start.split("\n", 1)[0]
        if extension in (".jsonl", ".ndjson") or (_JSON_ROW.fullmatch(first_line) and "\n" in start.strip()):
            return Choice("jsonl", "a JSON object on each line")
        return Choice("json", "one JSON object")
    if start.startswith("[") and (re.match(r"\[\s*[\[{\]]", start) or extension in (".json", ".jsonl")):
        return Choice("json", "one JSON array")
    lines = [line for line in start.splitlines()[:40] if line.strip()]
    if sum(line.lstrip().startswith("{") for line in lines) > len(lines) / 2:
        return Choice("jsonl", "a JSON object on most lines")
    if extension in (".txt", ".md", ".text") and not _is_table(sample):
        return Choice("text", f"named {extension}, and not a table")
    return Choice("csv", "rows of a table")


def sniff_table(sample: str, *, is_whole: bool, delimiter: str | None = None, header: bool | None = None) -> Dialect:
    """Find the delimiter, whether quotes group, and whether the first row names the columns."""
    hint = _EXCEL_HINT.match(sample)
    if hint:
        sample = sample[hint.end() :]
        delimiter = delimiter or hint[1]
    found = _best(sample, is_whole, (delimiter,) if delimiter else tuple(DELIMITERS))
    if delimiter:
        because = "named in the first line, as Excel writes it" if hint else "as requested"
    elif found.width > 1:
        because = f"{found.width} columns in {found.share:.0%} of the first {found.rows:,} rows"
    else:
        because = "no delimiter splits the rows evenly, so there is one column"
    has_header = Choice(header, "as requested") if header is not None else has_header_row(found.table)
    return Dialect(
        delimiter=Choice(found.delimiter, because), quoting=found.quoting, has_header=has_header, hint_line=bool(hint)
    )


def has_header_row(table: list[list[str]]) -> Choice[bool]:
    """Whether the first row names the columns."""
    if not table:
        return Choice(True, "there are no rows")
    first, rest = table[0], table[1:]
    names = [cell.strip() for cell in first]
    columns = [[row[at].strip() for row in rest if at < len(row) and row != first] for at in range(len(names))]
    for name, column in zip(names, columns, strict=True):
        if name and name in column:
            return Choice(False, f"{name!r} in the first row occurs again below it")
    if any(len(name) > _LONG_NAME for name in names):
        return Choice(False, "the cells of the first row are too long for names")
    if known := [name for name in names if is_known(name)]:
        return Choice(True, f"the first row has the name {known[0]!r}")
    if not rest:
        return Choice(False, "there is only one row, and no cell is a known column name")
    if any(_NUMBER.fullmatch(name) for name in names) or not all(names) or len(set(names)) < len(names):
        return Choice(False, "the first row has a number, an empty cell or a repeated cell")
    for name, column in zip(names, columns, strict=True):
        if column and all(_NUMBER.fullmatch(cell) for cell in column):
            return Choice(True, f"{name!r} is above numbers")
    if all(re.fullmatch(r"[\w .\-/#:()]+", name) and len(name.split()) <= 4 for name in names):
        return Choice(True, "the first row looks like names and is not repeated")
    return Choice(False, "the first row looks like the others")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Reading:
    """One way to split the sample into cells, and how even the result is."""

    delimiter: str
    quoting: bool
    table: list[list[str]]
    width: int  # cells in most rows
    share: float  # of rows with that many
    rows: int
    named_columns: int  # known names in a first row of several cells
    broken: int  # rows whose quotes do not close, or that were split inside quotes

    @property
    def is_even(self) -> bool:
        """True when most rows have the same number of columns, more than one."""
        return self.width > 1 and self.clean_share >= _CONSISTENT

    @property
    def clean_share(self) -> float:
        """The share of even rows, less those that are broken."""
        return self.share - self.broken / max(1, self.rows)

    @property
    def rank(self) -> tuple[int, bool, float, bool, int]:
        """Higher is better: known names, even rows, few broken rows, quotes that group, many columns."""
        return (self.named_columns, self.is_even, round(self.clean_share, 2), self.quoting, self.width)


def _best(sample: str, is_whole: bool, delimiters: tuple[str, ...]) -> _Reading:
    lines = sample.splitlines(keepends=True)
    if not is_whole and len(lines) > 1:
        lines.pop()  # it may be cut off
    readings = [_cut(lines, delimiter, quoting) for delimiter in delimiters for quoting in (True, False)]
    best = max(readings, key=lambda reading: reading.rank)
    if len(delimiters) == 1 or best.is_even or best.named_columns:
        return best
    one_column = readings[0]  # comma, with quotes: a table of one column may have commas inside them
    if one_column.width == 1 and one_column.share == 1.0 and not one_column.broken:
        return one_column
    return _cut(lines, _NO_DELIMITER, False)


def _cut(lines: list[str], delimiter: str, quoting: bool) -> _Reading:
    table: list[list[str]] = []
    broken = 0
    reader = csv.reader(
        lines, delimiter=delimiter, quoting=csv.QUOTE_MINIMAL if quoting else csv.QUOTE_NONE, strict=True
    )
    while len(table) < _ROWS:
        try:
            row = next(reader)
        except StopIteration:
            break
        except csv.Error:
            broken += 1
            continue
        if any(row):
            table.append(row)
    if not quoting:  # whole cells in quotes are evidence that quotes group
        broken = sum(_is_quoted(row) for row in table)
    widths = Counter(len(row) for row in table)
    width, count = widths.most_common(1)[0] if widths else (0, 0)
    known = sum(is_known(cell) for cell in table[0]) if table else 0
    return _Reading(
        delimiter=delimiter,
        quoting=quoting,
        table=table,
        width=width,
        share=count / max(1, len(table)),
        rows=len(table),
        named_columns=known if table and len(table[0]) > 1 else 0,
        broken=broken,
    )


def _is_quoted(row: list[str]) -> bool:
    """Whether a row that was split without regard to quotes has a cell, or several in a row, inside quotes."""
    opens = next((at for at, cell in enumerate(row) if cell[:1] == '"'), None)
    if opens is None:
        return False
    whole = len(row[opens]) > 1 and row[opens][-1] == '"'
    return whole or any(cell[-1:] == '"' for cell in row[opens + 1 :])


def _is_table(sample: str) -> bool:
    reading = _best(sample, False, tuple(DELIMITERS))
    return reading.is_even and (reading.named_columns > 0 or reading.delimiter in "\t|")
