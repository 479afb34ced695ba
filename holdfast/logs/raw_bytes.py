"""Reads the bytes of a log as UTF-8, whatever wrote them: gzip, UTF-16, a byte-order mark, a pipe."""

import codecs
import zlib
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Protocol

_BLOCK_BYTES = 8 << 20
_MOST_BYTES = 16 << 30  # reading stops here: a small compressed file may expand without end


class Readable(Protocol):
    """A source of bytes: a file, a pipe, or a wrapper of one."""

    def read(self, size: int = -1, /) -> bytes:
        """The next bytes; empty at the end."""
        ...


def read_bytes(stream: Readable) -> Iterator[bytes]:
    """The bytes of a stream as they arrive, decompressed, with text as UTF-8."""
    return _as_utf8(_blocks(stream))


def read_output(stream: Readable) -> Iterator[bytes]:
    """The output of a program as it was written: its first bytes may be anything, and say nothing about the rest."""
    return iter(lambda: stream.read(_BLOCK_BYTES) or b"", b"")


def decoded(line: bytes) -> str:
    """Decode one line as UTF-8, otherwise in the encoding of Windows."""
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError:
        return line.decode("cp1252", "replace")


def _blocks(stream: Readable) -> Iterator[bytes]:
    """The bytes of a stream as they arrive, decompressed if they are gzip."""
    raw = iter(lambda: stream.read(_BLOCK_BYTES) or b"", b"")
    first = next(raw, b"")
    blocks = chain([first], raw)
    total = 0
    for block in _unzipped(blocks) if first.startswith(b"\x1f\x8b\x08") else blocks:
        yield block
        total += len(block)
        if total > _MOST_BYTES:
            return


def _unzipped(blocks: Iterable[bytes]) -> Iterator[bytes]:
    """Decompress as far as possible; a truncated file gives what it contains."""
    decoder = zlib.decompressobj(31)
    for block in blocks:
        is_full = True
        while block or is_full:  # a full buffer may have more output, although all input was consumed
            try:
                unpacked = decoder.decompress(block, _BLOCK_BYTES)
            except zlib.error:
                return
            yield unpacked
            block, is_full = decoder.unconsumed_tail, len(unpacked) == _BLOCK_BYTES
            if decoder.eof:
                block, is_full, decoder = decoder.unused_data, False, zlib.decompressobj(31)


def _as_utf8(blocks: Iterator[bytes]) -> Iterator[bytes]:
    first = next((block for block in blocks if block), b"")
    if encoding := _wide_encoding(first):
        decoder = codecs.getincrementaldecoder(encoding)(errors="replace")
        for block in chain([first], blocks):
            yield decoder.decode(block).encode("utf-8", "replace")
        return
    yield first.removeprefix(codecs.BOM_UTF8)
    yield from blocks


def _wide_encoding(start: bytes) -> str:
    """The name of a two-byte encoding, by its byte-order mark or by the zeros in plain text."""
    sample = start[:2000]
    if start.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        # Spaces, digits and line ends have a zero byte in UTF-16; without any, the mark is part of other bytes.
        return "utf-16" if len(sample) == 2 or 0 in sample else ""
    for offset, name in ((1, "utf-16-le"), (0, "utf-16-be")):
        zeros = sample[offset::2]
        if (
            len(zeros) > 20
            and zeros.count(0) > 0.8 * len(zeros)
            and sample[1 - offset :: 2].count(0) < 0.1 * len(zeros)
        ):
            return name
    return ""
