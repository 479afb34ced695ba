"""One example of any task, how a text is taken from a row, and the readers that turn rows into examples."""

import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import msgspec

from holdfast.data.badrows import BadValue
from holdfast.data.label_forms import as_list
from holdfast.data.layout import ColumnLayout
from holdfast.data.names import ROLES
from holdfast.data.profile import MOST_VALUES

_ROLE_KEYS, _TEXT_KEYS = ("role", "from", "speaker", "author"), ("content", "value", "text", "message")
_PASSAGE_KEYS = ("text", "contents", "content", "passage", "document")
# What programs write for a missing value. "N/A" or "none" can be an answer, but is never a text to classify.
_NO_VALUE = frozenset(("nan", "<na>", "#n/a"))
_NO_TEXT = _NO_VALUE | {"n/a", "na", "none", "null"}
_LONGEST_NO_VALUE = 4
RowReader = Callable[[Mapping[str, object]], "Example | None"]


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
    """The text of one column; BadValue when it is empty or missing."""
    text = optional_text(row, column)
    if not text or is_placeholder(text, what):
        value = row.get(column)
        kind = "missing" if column not in row or value is None or value != value else "empty"
        raise BadValue(column, text, kind, what=what)
    return text


def is_placeholder(text: str, what: str = "text") -> bool:
    """True for a text such as "NaN" that only says that there is none."""
    return len(text) <= _LONGEST_NO_VALUE and text.lower() in (_NO_TEXT if what == "text" else _NO_VALUE)


def optional_text(row: Mapping[str, object], column: str | None) -> str:
    """The text of one column; empty when it is missing."""
    return plain_text(row.get(column), column) if column else ""


def plain_text(value: object, column: str) -> str:
    """A value as text without surrounding spaces; BadValue when it is not a text."""
    if value is None or value != value:  # NaN differs from itself
        return ""
    if isinstance(value, (list, dict)):
        raise BadValue(column, value, "not-text", found="a list" if isinstance(value, list) else "an object")
    text = (value if isinstance(value, str) else str(value)).strip()
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            raise BadValue(column, text[:100], "half-character", what="text") from None
    return text


def exact_hash(text: str) -> int:
    """A 64-bit hash of the exact text."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def content_hash(text: str) -> int:
    """A 64-bit hash of the text that ignores case and spaces."""
    return exact_hash(" ".join(text.split()).casefold())


class LabeledRows:
    """Reads rows for classifying: a text, which may be joined from several columns, and labels."""

    def __init__(self, layout: ColumnLayout):
        assert layout.labels is not None
        self._columns = layout.roles["text"]
        self._labels = layout.labels
        self._group = layout.column("group")
        self._known: dict[str, tuple[str, ...]] = {}  # by value; there are few different ones

    def read(self, row: Mapping[str, object]) -> Example:
        """Make an example of a row."""
        text = self._text(row)
        return Example(
            parts=(("text", text),), labels=self._labels_of(row), group=optional_text(row, self._group), key=text
        )

    def _labels_of(self, row: Mapping[str, object]) -> tuple[str, ...]:
        if self._labels.kind == "columns":
            return self._labels.read(row)
        value = row.get(self._labels.columns[0])
        if not isinstance(value, str):
            return self._labels.read(row)
        labels = self._known.get(value)
        if labels is None:
            labels = self._labels.read(row)
            if len(self._known) < MOST_VALUES:
                self._known[value] = labels
        return labels

    def _text(self, row: Mapping[str, object]) -> str:
        if len(self._columns) == 1:
            return text_of(row, self._columns[0])
        texts = (optional_text(row, column) for column in self._columns)
        text = "\n".join(text for text in texts if text and not is_placeholder(text))
        if not text:
            raise BadValue(" + ".join(self._columns), "", "empty", what="text")
        return text


class ConversationRows:
    """Reads rows for a causal model: instruction, prompt and answer, messages, or text."""

    def __init__(self, layout: ColumnLayout):
        self._form = {"messages": self._messages, "text": self._plain}.get(layout.form, self._prompted)
        columns = map(layout.column, ("text", "messages", "prompt", "answer", "context", "system", "history"))
        self._text, self._turns, self._prompt, self._answer, self._context, self._system, self._earlier = columns

    def read(self, row: Mapping[str, object]) -> Example:
        """Make an example of a row."""
        return self._form(row)

    def _plain(self, row: Mapping[str, object]) -> Example:
        text = text_of(row, self._text or "")
        return Example(parts=(("text", text),), key=text)

    def _prompted(self, row: Mapping[str, object]) -> Example:
        """An instruction with an optional input below it, or a prompt, and the answer."""
        prompt = _first_text(row, self._prompt or "", "prompt")
        if context := optional_text(row, self._context):
            prompt = f"{prompt}\n\n{context}"
        answer = _first_text(row, self._answer or "", "answer")
        parts = [*self._history(row), ("user", prompt), ("assistant", answer)]
        if system := optional_text(row, self._system):
            parts.insert(0, ("system", system))
        return Example(parts=tuple(parts), key=_key(parts))

    def _history(self, row: Mapping[str, object]) -> Iterator[tuple[str, str]]:
        column = self._earlier
        turns = row.get(column) if column else None
        for turn in turns if isinstance(turns, list) else ():
            if not isinstance(turn, list) or len(turn) != 2:
                raise BadValue(column or "", turn, "not-history")
            yield "user", plain_text(turn[0], column or "")
            yield "assistant", plain_text(turn[1], column or "")

    def _messages(self, row: Mapping[str, object]) -> Example:
        column = self._turns or ""
        parts = read_messages(row.get(column), column)
        if not any(role == "assistant" for role, _ in parts):
            raise BadValue(column, row.get(column), "no-answer")
        return Example(parts=tuple(parts), key=_key(parts))


def read_messages(value: object, column: str) -> list[tuple[str, str]]:
    """The turns of a conversation as (role, text), from either common format."""
    if value is None or value != value or value == [] or (isinstance(value, str) and not value.strip()):
        raise BadValue(column, "", "missing", what="conversation")
    if isinstance(value, str):
        try:
            value = msgspec.json.decode(value)
        except (msgspec.MsgspecError, ValueError, RecursionError):
            raise BadValue(column, value, "not-messages") from None
    if not isinstance(value, list) or not value:
        raise BadValue(column, value, "not-messages")
    return [_turn(message, column) for message in value]


def _turn(message: object, column: str) -> tuple[str, str]:
    if not isinstance(message, dict):
        raise BadValue(column, message, "not-message")
    role = next((message[key] for key in _ROLE_KEYS if key in message), None)
    content = next((message[key] for key in _TEXT_KEYS if key in message), None)
    known = ROLES.get(str(role).lower())
    if known is None:
        raise BadValue(column, role, "unknown-role")
    if isinstance(content, list):  # pieces of typed content
        content = "".join(str(piece.get("text", "")) for piece in content if isinstance(piece, dict))
    text = plain_text(content, column)
    if known == "assistant" and not text:
        raise BadValue(column, message, "empty-answer")
    return known, text


def _first_text(row: Mapping[str, object], column: str, what: str) -> str:
    """The text of a column; of a list of messages, as TRL writes prompts and choices, that of the last one."""
    value = row.get(column)
    if isinstance(value, list) and value and isinstance(value[-1], dict):
        return _turn(value[-1], column)[1]
    return text_of(row, column, what)


def _key(parts: list[tuple[str, str]]) -> str:
    """What comes before the first answer."""
    before = []
    for role, text in parts:
        if role == "assistant":
            break
        before.append(text)
    return "\n".join(before) or parts[0][1]


class MatchRows:
    """Reads rows for two towers: pairs, triplets, lists of positives and negatives, or passages of articles."""

    def __init__(self, layout: ColumnLayout, min_score: float | None):
        self._layout = layout
        self._min_score = min_score
        self._group = layout.column("group")

    def read(self, row: Mapping[str, object]) -> Example | None:
        """Make an example of a row; None for a pair below the lowest score."""
        if not self._is_positive(row):
            return None
        group = optional_text(row, self._group)
        if self._layout.form == "passages of articles":
            text = text_of(row, self._layout.roles["text"][0])
            if not group:
                raise BadValue(self._group or "", "", "no-article")
            return Example(parts=(("passage", text),), group=group, key=text)
        query = text_of(row, self._layout.roles["query"][0], "query")
        column = self._layout.roles["positive"][0]
        positives = passages_in(row.get(column), column)
        if not positives:
            raise BadValue(column, "", "no-positive")
        negatives = [
            text for column in self._layout.roles.get("negative", ()) for text in passages_in(row.get(column), column)
        ]
        return Example(
            parts=(
                ("query", query),
                *(("positive", text) for text in positives),
                *(("negative", text) for text in negatives),
            ),
            group=group,
            key=query,
        )

    def _is_positive(self, row: Mapping[str, object]) -> bool:
        column = self._layout.column("score")
        if not column or self._min_score is None:
            return True
        value = row.get(column)
        if value is None or value != value or not str(value).strip():
            raise BadValue(column, "", "no-score")
        try:
            return float(str(value)) >= self._min_score
        except ValueError:
            raise BadValue(column, value, "not-score") from None


def passages_in(value: object, column: str) -> list[str]:
    """Passages from a text, a list of texts, or a list of objects with title and text."""
    items = as_list(value) if isinstance(value, list) or (isinstance(value, str) and value.startswith("[")) else None
    texts = [_passage(item, column) for item in (items if items is not None else [value])]
    return [text for text in texts if text]


def _passage(item: object, column: str) -> str:
    if not isinstance(item, dict):
        return plain_text(item, column)
    text = next((plain_text(item[key], column) for key in _PASSAGE_KEYS if key in item), "")
    title = plain_text(item.get("title"), column)
    return f"{title} {text}".strip()


def reader_for(layout: ColumnLayout, min_score: float | None = None) -> RowReader:
    """The function that makes an example of a row.

    It raises BadValue for a row that cannot be used, and returns None for a pair below the lowest score.
    """
    if layout.task == "classify":
        return LabeledRows(layout).read
    if layout.task == "causal":
        return ConversationRows(layout).read
    return MatchRows(layout, min_score).read
