"""Finds a text file's encoding from a count of all its bytes.

UTF-8 is all but impossible to hit by chance, so it is taken whenever most of what is not ASCII fits it; the few rows
that do not are bad rows. Otherwise Windows-1252, which holds Latin-1's letters. Other encodings must be named.
"""

import codecs
import re
from pathlib import Path

from holdfast.core.errors import RequestError
from holdfast.core.plan import Choice
from holdfast.data.magic import utf16_by_zeros

_BOMS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
_NOT_IN_CP1252 = b"\x81\x8d\x8f\x90\x9d"
_HIGH = bytes(range(128, 256))
_LETTERS = bytes(byte for byte in range(256) if byte > 127 or chr(byte).isalpha())
# Of a hundred letters of Western European text a few are accented; of Cyrillic, Greek or Chinese bytes most are high.
_WESTERN_SHARE = 0.3
_DAMAGED = re.compile("[\udc80-\udcff]")
_NOT_ASCII = re.compile("[^\x00-\x7f]")


class EncodingCensus:
    """Counts, piece by piece, what tells encodings apart."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("surrogateescape")
        self._pending = False
        self.damaged = 0  # bytes that are no UTF-8
        self._fitting = 0  # letters beyond ASCII that are
        self._undefined = 0
        self._high = 0
        self._letters = 0

    def feed(self, chunk: bytes) -> None:
        """Count one more piece of the file."""
        if chunk.isascii() and not self._pending:
            return
        text = self._decoder.decode(chunk)
        self._pending = bool(self._decoder.getstate()[0])
        damaged = len(_DAMAGED.findall(text))
        self.damaged += damaged
        self._fitting += len(_NOT_ASCII.findall(text)) - damaged
        if damaged:
            self._undefined += sum(chunk.count(byte) for byte in _NOT_IN_CP1252)
            self._high += len(chunk) - len(chunk.translate(None, _HIGH))
            self._letters += len(chunk) - len(chunk.translate(None, _LETTERS))

    def encoding(self, path: Path, head: bytes, *, is_binary: bool) -> Choice[str]:
        """Choose the encoding once everything was counted."""
        self.damaged += len(_DAMAGED.findall(self._decoder.decode(b"", final=True)))
        if is_binary:
            return Choice("utf-8", "not a text file")
        for bom, name in _BOMS:
            if head.startswith(bom):
                return Choice(name, "the file starts with its mark")
        if name := utf16_by_zeros(head):
            return Choice(name, "every other byte is zero")
        if not self.damaged:
            return Choice("utf-8", "every byte fits")
        if self._fitting >= self.damaged:
            return Choice("utf-8", f"{self._fitting:,} letters fit, {self.damaged:,} bytes do not")
        if self._high > _WESTERN_SHARE * self._letters:
            raise RequestError(
                f"the encoding of {path.name} cannot be told",
                seen=f"not UTF-8, and {self._high / self._letters:.0%} of its letters are beyond ASCII",
                try_next=("--encoding NAME, such as cp1251, gb18030, shift_jis, big5, euc_kr, iso8859_7",),
            )
        if self._undefined:
            return Choice("latin-1", "not UTF-8, and some bytes are not in Windows-1252")
        return Choice("cp1252", "not UTF-8; Windows-1252 holds every byte")
