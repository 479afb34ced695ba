"""Rows of a table in a text file, one at a time, by the standard library's reader, which keeps quoted line breaks."""

import csv
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from holdfast.core.errors import RequestError
from holdfast.data.badrows import BadRows, shortened
from holdfast.data.rawfile import LINE_CHARACTERS, RawFile, open_text, reading, text_lines
from holdfast.data.sniff import Dialect

Row = tuple[int, dict[str, object]]  # where it stands, and its values

_MANY_LINES = 4  # that one record spans, before anybody wonders
_ALIKE = 0.8
_NEVER = re.compile("[\x00\udc80-\udcff]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """The columns of a table."""

    columns: tuple[str, ...]
    repeated: tuple[str, ...] = ()  # names that stand more than once; the later ones were numbered


def read_header(raw: RawFile, dialect: Dialect) -> Header:
    """Give the columns' names, or numbers where the file has no header."""
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
    width = len(columns)
    header: list[str] | None = None
    look_closely = raw.damaged > 0 or raw.zeros > 0
    for line, end, cells in _records(raw, dialect, bad):
        if end - line >= _MANY_LINES and (inside := _swallowed(cells, width, dialect)):
            words = f"a quote opens here and closes on line {end}; {inside} lines between read like rows of their own"
            bad.doubt(raw.path, line, words)
        if not dialect.quoting and (opened := _opened(cells)):
            words = f"a quote opens and never closes; it is taken as a letter of the text, found {shortened(opened)}"
            bad.doubt(raw.path, line, words)
        if dialect.has_header.value and header is None:
            header = cells
            continue
        if len(cells) > width and not any(cells[width:]):
            cells = cells[:width]  # empty cells at the end, as spreadsheets leave them
        if len(cells) != width:
            bad.add(raw.path, line, _ragged(len(cells), width, dialect), value=_joined(cells, dialect))
        elif cells == header:
            bad.add(raw.path, line, "the header stands again", value=_joined(cells, dialect))
        elif look_closely and (fault := _damage(cells)):
            bad.add(raw.path, line, fault[1], column=columns[fault[0]], value=cells[fault[0]])
        else:
            yield line, dict(zip(columns, cells, strict=True))


def _records(raw: RawFile, dialect: Dialect, bad: BadRows) -> Iterator[tuple[int, int, list[str]]]:
    """Records with the lines on which each starts and ends; empty lines are passed over."""
    csv.field_size_limit(max(csv.field_size_limit(), LINE_CHARACTERS))
    with open_text(raw) as file, reading(raw.path):
        lines = text_lines(raw.path, file)
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
            if any(cells) and (len(cells) > 1 or cells[0].strip()):
                yield start, reader.line_num + skipped, cells


def _swallowed(cells: list[str], width: int, dialect: Dialect) -> int:
    """How many lines inside a cell have as many marks as a row has; none where most have not, as in running text."""
    inside = [line for cell in cells for line in cell.split("\n")[1:-1] if line.strip()]
    alike = sum(line.count(dialect.delimiter.value) == width - 1 for line in inside)
    return alike if width > 1 and alike >= _MANY_LINES - 1 and alike >= _ALIKE * len(inside) else 0


def _opened(cells: list[str]) -> str:
    """The cell that begins with a quote without its other half; empty where there is none."""
    return next((cell for cell in cells if cell[:1] == '"' and cell.count('"') % 2), "")


def _note_broken(path: Path, start: int, end: int, error: str, bad: BadRows) -> None:
    """Note a record that the reader gave up on, with all the lines it had taken in."""
    if "field larger" in error:
        raise RequestError(
            f"{path.name}, row {start}: a quote opens and {LINE_CHARACTERS:,} characters later has not closed",
            try_next=('double the quotes inside texts ("") and close every one', "--delimiter and no quotes"),
        )
    reason = "a quote opens and never closes" if "end of data" in error else "a quote inside the text is not doubled"
    if end > start:
        reason += f" (lines {start} to {end} became one row)"
    bad.add(path, start, reason, rows=end - start + 1)


def _ragged(found: int, width: int, dialect: Dialect) -> str:
    mark = "a tab" if dialect.delimiter.value == "\t" else repr(dialect.delimiter.value)
    if found > width:
        return f"{found} cells where the table has {width}: is there {mark} in a text that is not in quotes?"
    return f"{found} cells where the table has {width}"


def _joined(cells: list[str], dialect: Dialect) -> str:
    return dialect.delimiter.value.join(cells)


def _damage(cells: list[str]) -> tuple[int, str] | None:
    for at, cell in enumerate(cells):
        if found := _NEVER.search(cell):
            if found[0] == "\0":
                return at, "a NUL byte stands in the text"
            return at, f"byte 0x{ord(found[0]) - 0xDC00:02X} is not UTF-8"
    return None


def _clean(name: str) -> str:
    return name.strip().strip("\ufeff").strip()


def _next_free(name: str, taken: list[str]) -> str:
    number = 2
    while f"{name}_{number}" in taken:
        number += 1
    return f"{name}_{number}"
