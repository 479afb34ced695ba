"""Reads rows of a JSON file one at a time: an object per line, one array of objects, or one object of columns.

An array is read object by object, so a large file is never in memory as a whole. An object of columns has to be.
"""

import json
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import IO, Any

import msgspec

from holdfast.core.errors import RequestError
from holdfast.data.badrows import BadRows
from holdfast.data.csvrows import Row
from holdfast.data.rawfile import LINE_CHARACTERS, RawFile, open_text, reading, text_lines

_WRAPPERS = ("data", "rows", "examples", "records", "items", "train", "instances")
_ONE_ROW = ("messages", "conversations")
_READ_CHARACTERS = 1_048_576
_WHOLE_CHARACTERS = 1_000_000_000
_SPACE = " \t\r\n\ufeff"


def json_line_rows(raw: RawFile, bad: BadRows) -> Iterator[Row]:
    """Read an object from each line; any other line is a bad row."""
    decode = msgspec.json.Decoder().decode
    with open_text(raw) as file, reading(raw.path):
        for number, line in enumerate(text_lines(raw, file), start=1):
            text = line.strip(_SPACE)
            if not text:
                continue
            try:
                value = decode(text)
            except (msgspec.MsgspecError, ValueError, RecursionError) as error:
                value = _leniently(text)
                if value is None:
                    bad.add(raw.path, number, "not-json", value=text, details={"error": _plain(error)})
                    continue
            if isinstance(value, dict):
                yield number, value
            else:
                bad.add(raw.path, number, "not-object", value=text)


def json_rows(raw: RawFile, bad: BadRows) -> Iterator[Row]:
    """Read the rows of one JSON document."""
    with open_text(raw) as file, reading(raw.path):
        stream = _Stream(raw, file)
        if stream.peek() == "[":
            rows = stream.array()
        else:
            stream.longest = _WHOLE_CHARACTERS  # perhaps one object of columns, which is read as a whole
            rows = _rows_of_object(raw, stream)
        for number, value in enumerate(rows, start=1):
            if isinstance(value, dict):
                yield number, value
            else:
                bad.add(raw.path, number, "not-object", value=value)


def _rows_of_object(raw: RawFile, stream: "_Stream") -> Iterator[Any]:
    value = stream.value()
    if stream.peek():  # one object after another, each perhaps over several lines
        yield value
        while stream.peek():
            yield stream.value()
        return
    yield from _unfold(raw, value)


def _unfold(raw: RawFile, value: Any) -> Iterator[Any]:
    """Turn an object of columns, or one with its rows under a name, into rows."""
    if not isinstance(value, dict) or not value:
        raise RequestError(
            f"{raw.path.name} has no rows", found=repr(value)[:80], try_next=("write a JSON array of objects",)
        )
    for name in _WRAPPERS if len(value) > 1 else tuple(value):
        inner = value.get(name)
        if isinstance(inner, list) and inner and all(isinstance(row, dict) for row in islice(inner, 100)):
            if name in _ONE_ROW:
                break
            yield from inner
            return
    columns = list(value.values())
    if all(isinstance(column, list) for column in columns) and tuple(value) not in ((name,) for name in _ONE_ROW):
        yield from _from_lists(raw, value)
    elif all(isinstance(column, dict) for column in columns):
        yield from _from_indexed(value)
    else:
        yield value  # one row


def _from_lists(raw: RawFile, columns: Mapping[str, list[Any]]) -> Iterator[Any]:
    lengths = {name: len(values) for name, values in columns.items()}
    if len(set(lengths.values())) > 1:
        raise RequestError(
            f"the columns of {raw.path.name} have different lengths",
            found=", ".join(f"{name!r}: {length:,}" for name, length in lengths.items()),
            try_next=("give every column the same number of values",),
        )
    for values in zip(*columns.values(), strict=True):
        yield dict(zip(columns, values, strict=True))


def _from_indexed(value: Mapping[str, Mapping[str, Any]]) -> Iterator[Any]:
    """Columns of {row number: value}, as pandas writes them, or rows under a name each."""
    names = list(value)
    first = value[names[0]]
    if all(key.isdigit() for key in first) and all(value[name].keys() == first.keys() for name in names):
        for key in first:
            yield {name: value[name][key] for name in names}
    else:
        yield from value.values()


class _Stream:
    """Reads JSON values one after another from a text stream, keeping one in memory at a time."""

    def __init__(self, raw: RawFile, file: IO[str]):
        self._raw, self._file = raw, file
        self._buffer, self._at = "", 0
        self._ended = False
        self.longest = LINE_CHARACTERS  # of a value
        self._lines_before, self._column_before = 0, 0
        self._decoder = json.JSONDecoder()

    def peek(self) -> str:
        """The next non-space character; empty at the end."""
        while True:
            while self._at < len(self._buffer) and self._buffer[self._at] in _SPACE:
                self._at += 1
            if self._at < len(self._buffer):
                return self._buffer[self._at]
            if not self._read_more():
                return ""

    def value(self) -> Any:
        """Read the next whole value."""
        self.peek()
        while True:
            try:
                value, self._at = self._decoder.raw_decode(self._buffer, self._at)
            except json.JSONDecodeError as error:
                may_continue = error.msg.startswith("Unterminated") or error.pos > len(self._buffer) - 16
                if not (may_continue and self._read_more()):
                    raise self._broken(error.msg, error.pos) from error
            except (ValueError, RecursionError) as error:  # a number of 5,000 digits, a thousand brackets
                raise self._broken(str(error), self._at) from error
            else:
                return value

    def array(self) -> Iterator[Any]:
        """Read the values of an array."""
        self.peek()
        self._at += 1
        if self.peek() == "]":
            self._close()
            return
        while True:
            yield self.value()
            mark = self.peek()
            self._at += 1
            if mark == "]":
                self._close()
                return
            if mark != ",":
                wrong = "the array is not closed" if not mark else f"expected ',' or ']', not {mark!r}"
                raise self._broken(wrong, self._at - 1)

    def _close(self) -> None:
        self._at += self._buffer[self._at :].startswith("]")
        if mark := self.peek():
            raise self._broken(f"unexpected {mark!r} after the end of the array", self._at)

    def _read_more(self) -> bool:
        if self._ended:
            return False
        kept = len(self._buffer) - self._at
        if kept > self.longest:
            raise self._broken(f"a value is longer than {self.longest:,} characters", self._at)
        # Doubling the buffer keeps the number of attempts to decode one long value small.
        more = self._file.read(max(_READ_CHARACTERS, kept))
        if not more:
            self._ended = True
            return False
        used = self._buffer[: self._at]
        breaks = used.count("\n")
        self._lines_before += breaks
        self._column_before = len(used) - used.rfind("\n") - 1 if breaks else self._column_before + len(used)
        self._buffer, self._at = self._buffer[self._at :] + more, 0
        return True

    def _broken(self, what: str, at: int) -> RequestError:
        before = self._buffer[:at]
        breaks = before.count("\n")
        column = at - before.rfind("\n") if breaks else self._column_before + at + 1
        return RequestError(
            f"{self._raw.path.name}, line {self._lines_before + breaks + 1}, column {column}: not JSON: {what}",
            found=repr(self._buffer[max(0, at - 40) : at + 40]) if self._buffer else "the end of the file",
            try_next=(
                "correct the file there",
                "write one object per line (.jsonl), where a broken row spoils no other",
            ),
        )


def _leniently(text: str) -> Any:
    """Read JSON with NaN or Infinity, or with a comma after it; None when it is broken in another way."""
    if not text.endswith(",") and "NaN" not in text and "Infinity" not in text:
        return None
    try:
        return json.loads(text.removesuffix(","))
    except (ValueError, RecursionError):
        return None


def _plain(error: Exception) -> str:
    if isinstance(error, UnicodeEncodeError):
        return "a byte is not UTF-8"
    return str(error).removeprefix("JSON is malformed: ")
