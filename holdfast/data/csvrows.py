"""Reads rows of a CSV or TSV file one at a time, with the standard library's reader, which keeps quoted line breaks."""

import csv
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from holdfast.core.errors import RequestError
from holdfast.data.badrows import BadRows, BadValue, shortened
from holdfast.data.rawfile import LINE_CHARACTERS, RawFile, open_text, reading, text_lines
from holdfast.data.sniff import Dialect

Row = tuple[int, dict[str, object]]  # its line or number, and its values

_MANY_LINES = 4  # in one record, from which swallowed rows are suspected
_ALIKE = 0.8  # share of the lines inside a cell that look like rows, from which they probably are
_NEVER = re.compile("[\x00\udc80-\udcff]")  # NUL, and the surrogates that stand for bytes that are not UTF-8


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """The columns of a table."""

    columns: tuple[str, ...]
    repeated: tuple[str, ...] = ()  # names that occur more than once; the later ones get a number


def read_header(raw: RawFile, dialect: Dialect) -> Header:
    """The names of the columns; numbered ones where the file has no header."""
    cells: list[str] = []
    for _, _, row in _records(raw, dialect, BadRows(1.0)):
        cells = row
        break
    if not dialect.has_header.value:
        return Header(columns=tuple(f"column_{at + 1}" for at in range(len(cells))))
    names: list[str] = []
    repeated: list[str] = []
    for at, cell in enumerate(cells):
        name = _clean(cell) or f"column_{at + 1}"
        if name in names:
            repeated.append(name)
            name = _next_free(name, names)
        names.append(name)
    return Header(columns=tuple(names), repeated=tuple(dict.fromkeys(repeated)))


def csv_rows(raw: RawFile, dialect: Dialect, columns: tuple[str, ...], bad: BadRows) -> Iterator[Row]:
    """Read the rows below the header; what does not fit the columns is noted as bad."""
    width, delimiter = len(columns), dialect.delimiter.value
    header: list[str] | None = None
    look_closely = raw.damaged > 0 or raw.zeros > 0
    for line, end, cells in _records(raw, dialect, bad):
        if end - line >= _MANY_LINES and (inside := _swallowed(cells, width, dialect)):
            bad.doubt("swallowed-rows", raw.path, line, end=end, lines=inside)
        if not dialect.quoting and (opened := _opened(cells)):
            bad.doubt("open-quote", raw.path, line, found=shortened(opened))
        if dialect.has_header.value and header is None:
            header = cells
            continue
        if len(cells) > width and not any(cells[width:]):
            cells = cells[:width]  # empty cells at the end, as spreadsheets leave them
        if len(cells) != width:
            mark = "tab" if delimiter == "\t" else repr(delimiter)
            kind = "more-cells" if len(cells) > width else "cells"
            details = {"found": len(cells), "width": width, "delimiter": mark}
            bad.add(raw.path, line, kind, value=delimiter.join(cells), details=details)
        elif cells == header:
            bad.add(raw.path, line, "repeated-header", value=delimiter.join(cells))
        elif look_closely and (damaged := _damaged(cells, columns)):
            bad.add_value(raw.path, line, damaged)
        else:
            yield line, dict(zip(columns, cells, strict=True))


def _records(raw: RawFile, dialect: Dialect, bad: BadRows) -> Iterator[tuple[int, int, list[str]]]:
    """Every record with its first and last line; blank lines are skipped."""
    csv.field_size_limit(max(csv.field_size_limit(), LINE_CHARACTERS))
    with open_text(raw) as file, reading(raw.path):
        lines = text_lines(raw, file)
        skipped = 0
        if dialect.hint_line:
            next(lines)
            skipped = 1
        reader = csv.reader(
            lines,
            delimiter=dialect.delimiter.value,
            quoting=csv.QUOTE_MINIMAL if dialect.quoting else csv.QUOTE_NONE,
            strict=True,
        )
        while True:
            start = reader.line_num + 1 + skipped
            try:
                cells = next(reader)
            except StopIteration:
                return
            except csv.Error as error:
                _note_broken(raw.path, start, reader.line_num + skipped, str(error), bad)
                continue
            if any(cells) and any(map(str.strip, cells)):
                yield start, reader.line_num + skipped, cells


def _swallowed(cells: list[str], width: int, dialect: Dialect) -> int:
    """How many lines inside a cell have as many delimiters as a row; 0 when most do not, as in running text."""
    inside = [line for cell in cells for line in cell.split("\n")[1:-1] if line.strip()]
    alike = sum(line.count(dialect.delimiter.value) == width - 1 for line in inside)
    return alike if width > 1 and alike >= _MANY_LINES - 1 and alike >= _ALIKE * len(inside) else 0


def _opened(cells: list[str]) -> str:
    """The first cell that opens a quote and does not close it; empty if there is none."""
    return next((cell for cell in cells if cell[:1] == '"' and cell.count('"') % 2), "")


def _note_broken(path: Path, start: int, end: int, error: str, bad: BadRows) -> None:
    """Note a record that the reader gave up on, with all the lines it had consumed."""
    if "field larger" in error:
        raise RequestError(
            f"{path.name}, row {start}: a quote opens and is still open {LINE_CHARACTERS:,} characters later",
            try_next=('double every quote inside a text ("") and close every quoted text',),
        )
    one, several = ("open-quote", "swallowed-rows") if "end of data" in error else ("stray-quote", "stray-quote-rows")
    kind = several if end > start else one
    bad.add(path, start, kind, rows=end - start + 1, details={"start": start, "end": end})


def _damaged(cells: list[str], columns: tuple[str, ...]) -> BadValue | None:
    """The first cell with a NUL byte or a byte that is not UTF-8."""
    for column, cell in zip(columns, cells, strict=True):
        if found := _NEVER.search(cell):
            if found[0] == "\0":
                return BadValue(column, cell, "nul-byte")
            return BadValue(column, cell, "not-utf8", byte=ord(found[0]) - 0xDC00)
    return None


def _clean(name: str) -> str:
    return name.strip().strip("\ufeff").strip()


def _next_free(name: str, taken: list[str]) -> str:
    number = 2
    while f"{name}_{number}" in taken:
        number += 1
    return f"{name}_{number}"
