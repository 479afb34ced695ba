"""Reads a log of any size and any bytes into evidence, in bounded memory and a few seconds.

The beginning and the end are kept completely. In between, only the context of words that suggest trouble is kept, and
of lines that differ only in numbers only the first few. Line numbers stay those of the file. Nothing is executed.
"""

import re
from collections import deque
from collections.abc import Iterable, Iterator
from heapq import merge
from itertools import chain
from pathlib import Path

from holdfast.core.evidence import Evidence
from holdfast.core.observations import ExitStatus
from holdfast.logs.log_lines import Line
from holdfast.logs.log_text import read_lines
from holdfast.logs.raw_bytes import Readable, decoded, read_bytes, read_output

_WHOLE_BYTES = 1 << 20  # a file up to this size is kept completely; crash reports are this small
_HEAD_BYTES, _MIDDLE_BYTES, _TAIL_BYTES = 96 << 10, 224 << 10, 192 << 10
_BEFORE_BYTES, _AFTER_BYTES = 3000, 6000  # kept around a word
_CHUNK_BYTES = 8 << 20
_REPEATS = 3  # how many lines of one shape are kept

# Searched one by one: `bytes.find` reads 1 GB per second, a regular expression for all of them 10 MB.
_STRONG_WORDS = (b"Traceback", b"egmentation", b"illed", b"bort", b"ssert")
_WEAK_WORDS = (b"rror", b"RROR", b"xception", b"arning")  # which some logs have in every line
_CHANGING = re.compile(rb"[\w.-]*\d[\w.-]*")

_Piece = tuple[int, int, bytes]  # its offset in the log, the number of its first line, its bytes
_Span = tuple[int, int]


def read_log_file(log: Path | str | Readable, status: ExitStatus | str | None = None) -> Evidence:
    """Read a log from a file or a stream. `status` is how the process ended: a value, or text
    such as "1", "SIGKILL" or "hang".
    """
    if isinstance(log, (Path, str)):
        with Path(log).open("rb") as stream:
            return read_lines(_kept_lines(read_bytes(stream)), status)
    return read_lines(_kept_lines(read_bytes(log)), status)


def read_output_file(output: Path, status: ExitStatus | str | None = None) -> Evidence:
    """Read the output of a program that was started here, which is neither compressed nor in UTF-16."""
    with output.open("rb") as stream:
        return read_lines(_kept_lines(read_output(stream)), status)


def _kept_lines(blocks: Iterator[bytes]) -> Iterator[Line]:
    number = 0
    for first, piece in _joined(_pieces(blocks)):
        if number:
            yield number, ""  # something was left out, so this is not the next line
        for number, line in enumerate(piece.split(b"\n"), start=first):
            yield number, decoded(line)


def _joined(pieces: Iterator[_Piece]) -> Iterator[tuple[int, bytes]]:
    """Join pieces that are adjacent in the log."""
    at, line, joined = next(pieces)
    for next_at, next_line, piece in pieces:
        if next_at == at + len(joined):
            joined += piece
        else:
            yield line, joined
            at, line, joined = next_at, next_line, piece
    yield line, joined


def _pieces(blocks: Iterator[bytes]) -> Iterator[_Piece]:
    """The parts of a log that are kept, in order."""
    start = bytearray()
    for block in blocks:
        start += block
        if len(start) > _WHOLE_BYTES:
            break
    else:
        yield 0, 1, bytes(start)
        return
    head_end = start.find(b"\n", _HEAD_BYTES - _BEFORE_BYTES, _HEAD_BYTES)
    middle = _Middle(head_end if head_end > 0 else _HEAD_BYTES)
    yield 0, 1, bytes(start[: middle.kept_until])
    for chunk in _chunks(chain([bytes(start)], blocks)):
        middle.take(chunk)
    yield from middle.pieces()
    yield middle.tail()


class _Middle:
    """Searches a log and keeps the context of words that suggest trouble. The last part is the tail."""

    def __init__(self, head_end: int) -> None:
        self.kept_until = head_end  # an offset in the log, like every `at` below
        self._buffer = b""
        self._buffer_at = 0
        self._line = 1  # of the first byte in the buffer
        self._searched_until = head_end
        self._shapes: dict[bytes, int] = {}
        self._finds = dict.fromkeys(_STRONG_WORDS + _WEAK_WORDS, 0)
        self._strong, self._weak = _Store(_MIDDLE_BYTES // 2), _Store(_MIDDLE_BYTES // 2)

    def take(self, chunk: bytes) -> None:
        """Search the next part of the log; what may be the tail waits for the next part."""
        self._buffer += chunk
        limit = max(len(self._buffer) - _TAIL_BYTES, 0)
        strong = [span for word in _STRONG_WORDS for span in self._around(word, limit)]
        weak = [span for word in _WEAK_WORDS for span in self._around(word, limit)]
        counted_to = 0
        for begin, end, is_strong in _apart(strong, weak):
            begin = max(begin, self.kept_until - self._buffer_at)
            if begin < end:
                self._line += self._buffer.count(b"\n", counted_to, begin)
                counted_to = begin
                store = self._strong if is_strong else self._weak
                store.keep((self._buffer_at + begin, self._line, self._buffer[begin:end]))
                self.kept_until = self._buffer_at + end
        dropped = max(limit - _BEFORE_BYTES, counted_to)
        self._line += self._buffer.count(b"\n", counted_to, dropped)
        self._searched_until = max(self._searched_until, self._buffer_at + limit)
        self._buffer, self._buffer_at = self._buffer[dropped:], self._buffer_at + dropped

    def pieces(self) -> Iterator[_Piece]:
        """The kept pieces, in the order of the log."""
        return merge(self._strong.pieces(), self._weak.pieces())

    def tail(self) -> _Piece:
        """The end of the log, without what was already kept."""
        begin = max(len(self._buffer) - _TAIL_BYTES, self.kept_until - self._buffer_at, 0)
        if self._buffer_at + begin > self.kept_until:
            line_start = self._buffer.find(b"\n", begin, begin + _BEFORE_BYTES)
            begin = line_start + 1 if line_start >= 0 else begin
        return self._buffer_at + begin, self._line + self._buffer.count(b"\n", 0, begin), self._buffer[begin:]

    def _around(self, word: bytes, limit: int) -> Iterator[_Span]:
        buffer, at, stale = self._buffer, self._searched_until - self._buffer_at, 0
        while (at := buffer.find(word, max(at, 0), limit)) >= 0:
            if self._is_fresh(at):
                stale = 0
                line_start = buffer.find(b"\n", max(at - _BEFORE_BYTES, 0), at)
                line_end = buffer.rfind(b"\n", at, at + _AFTER_BYTES)
                yield (
                    line_start + 1 if line_start >= 0 else max(at - _BEFORE_BYTES, 0),
                    line_end if line_end >= 0 else at + _AFTER_BYTES,
                )
                self._finds[word] += 1
            else:
                stale += 1
            # A word that occurs in every line is searched in larger and larger steps.
            at += min(len(word) << min(max(stale, self._finds[word] // 200), 14), 1 << 16)

    def _is_fresh(self, at: int) -> bool:
        begin = (
            max(self._buffer.rfind(b"\n", max(at - 120, 0), at), self._buffer.rfind(b"\r", max(at - 120, 0), at)) + 1
        )
        shape = _CHANGING.sub(b"0", self._buffer[max(begin, at - 120) : at + 60].partition(b"\n")[0])
        count = self._shapes.get(shape, 0) + 1
        if len(self._shapes) > 20_000:
            self._shapes.clear()
        self._shapes[shape] = count
        return count <= _REPEATS


class _Store:
    """Keeps the first and the latest pieces up to a number of bytes."""

    def __init__(self, most_bytes: int) -> None:
        self._half = most_bytes // 2
        self._first, self._latest = list[_Piece](), deque[_Piece]()
        self._room, self._latest_bytes = self._half, 0

    def keep(self, piece: _Piece) -> None:
        """Add a piece, to the first ones while there is space."""
        at, line, found = piece
        self._room -= len(found)
        if self._room >= 0:
            self._first.append(piece)
            return
        self._latest.append((at, line, found[: self._half]))
        self._latest_bytes += len(self._latest[-1][2])
        while self._latest_bytes > self._half:
            self._latest_bytes -= len(self._latest.popleft()[2])

    def pieces(self) -> list[_Piece]:
        """The kept pieces, in order."""
        return [*self._first, *self._latest]


def _apart(strong: list[_Span], weak: list[_Span]) -> list[tuple[int, int, bool]]:
    """Spans without overlap, in order, each with whether it is strong."""
    taken = _merged(strong)
    spans = [(begin, end, True) for begin, end in taken]
    for begin, end in _merged(weak):
        for taken_begin, taken_end in taken:
            if begin < taken_end and taken_begin < end:
                spans.append((begin, taken_begin, False))
                begin = taken_end
        spans.append((begin, end, False))
    return sorted(spans)


def _merged(spans: list[_Span]) -> list[_Span]:
    merged: list[_Span] = []
    for begin, end in sorted(spans):
        if merged and begin <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((begin, end))
    return merged


def _chunks(blocks: Iterable[bytes]) -> Iterator[bytes]:
    """The same bytes in larger parts; a pipe delivers small ones."""
    waiting: list[bytes] = []
    size = 0
    for block in blocks:
        waiting.append(block)
        size += len(block)
        if size >= _CHUNK_BYTES // 2:
            yield b"".join(waiting)
            waiting, size = [], 0
    yield b"".join(waiting)
