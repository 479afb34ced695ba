"""One example of any task, and how a text is taken from a row."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

from holdfast.data.badrows import BadValue


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """What is learned from one row: texts in their parts, and labels."""

    parts: tuple[tuple[str, str], ...]  # (part, text): "text"; "system", "user", "assistant"; "query", "positive", ...
    labels: tuple[str, ...] = ()
    group: str = ""  # examples of one group stay in one split
    key: str  # examples with the same key stay in one split: the text, the prompt, the query

    def texts(self, part: str) -> list[str]:
        """The texts of one part."""
        return [text for name, text in self.parts if name == part]


def text_of(row: Mapping[str, object], column: str, what: str = "text") -> str:
    """The text of one column; BadValue when it is empty or none."""
    text = optional_text(row, column)
    if not text:
        raise BadValue(
            column, row.get(column) or "", f"the {what} is empty" if column in row else f"the {what} is missing"
        )
    return text


def optional_text(row: Mapping[str, object], column: str | None) -> str:
    """The text of one column, empty when there is none."""
    return plain_text(row.get(column), column) if column else ""


def plain_text(value: object, column: str) -> str:
    """A value as text, without spaces around it; BadValue when it cannot be one."""
    if value is None or value != value:  # NaN differs from itself
        return ""
    if isinstance(value, (list, dict)):
        raise BadValue(column, value, f"a text is wanted, not {'a list' if isinstance(value, list) else 'an object'}")
    text = (value if isinstance(value, str) else str(value)).strip()
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            raise BadValue(column, text[:100], "the text holds half a character (a lone surrogate)") from None
    return text


def exact_hash(text: str) -> int:
    """64 bits that say whether two texts are the very same."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def content_hash(text: str) -> int:
    """64 bits that say whether two texts are the same but for spaces and capitals."""
    return exact_hash(" ".join(text.split()).casefold())
