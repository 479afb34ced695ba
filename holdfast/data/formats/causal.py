"""Rows for a causal model: turns of a conversation, of which the assistant's are learned, or plain text."""

from collections.abc import Iterator, Mapping

import msgspec

from holdfast.data.badrows import BadValue
from holdfast.data.formats.example import Example, optional_text, plain_text, text_of
from holdfast.data.layout import Layout
from holdfast.data.names import ROLES

_ROLE_KEYS, _TEXT_KEYS = ("role", "from", "speaker", "author"), ("content", "value", "text", "message")


class ConversationRows:
    """Reads rows of one form: instruction, prompt and answer, messages, or text."""

    def __init__(self, layout: Layout):
        self._layout = layout
        self._form = {"messages": self._messages, "text": self._plain}.get(layout.form, self._prompted)

    def read(self, row: Mapping[str, object]) -> Example:
        """Make an example of a row."""
        return self._form(row)

    def _plain(self, row: Mapping[str, object]) -> Example:
        column = self._layout.roles["text"][0]
        text = text_of(row, column)
        return Example(parts=(("text", text),), key=text)

    def _prompted(self, row: Mapping[str, object]) -> Example:
        """An instruction with perhaps an input below it, or a prompt; and the answer."""
        column = self._layout.column
        prompt_column, answer_column = column("prompt") or "", column("answer") or ""
        prompt = _first_text(row, prompt_column, "prompt")
        if context := optional_text(row, column("context")):
            prompt = f"{prompt}\n\n{context}"
        answer = _first_text(row, answer_column, "answer")
        parts = [*self._history(row), ("user", prompt), ("assistant", answer)]
        if system := optional_text(row, column("system")):
            parts.insert(0, ("system", system))
        return Example(parts=tuple(parts), key=_key(parts))

    def _history(self, row: Mapping[str, object]) -> Iterator[tuple[str, str]]:
        column = self._layout.column("history")
        turns = row.get(column) if column else None
        for turn in turns if isinstance(turns, list) else ():
            if not isinstance(turn, list) or len(turn) != 2:
                raise BadValue(column or "", turn, "history is wanted as pairs of question and answer")
            yield "user", plain_text(turn[0], column or "")
            yield "assistant", plain_text(turn[1], column or "")

    def _messages(self, row: Mapping[str, object]) -> Example:
        column = self._layout.roles["messages"][0]
        parts = read_messages(row.get(column), column)
        if not any(role == "assistant" for role, _ in parts):
            raise BadValue(column, row.get(column), "no message is the assistant's, so there is nothing to learn")
        return Example(parts=tuple(parts), key=_key(parts))


def read_messages(value: object, column: str) -> list[tuple[str, str]]:
    """Turns of a conversation as (role, text), from either common spelling."""
    if isinstance(value, str):
        try:
            value = msgspec.json.decode(value)
        except (msgspec.MsgspecError, ValueError, RecursionError):
            raise BadValue(column, value, "a list of messages is wanted") from None
    if not isinstance(value, list) or not value:
        raise BadValue(column, value if value is not None else "", "a list of messages is wanted")
    return [_turn(message, column) for message in value]


def _turn(message: object, column: str) -> tuple[str, str]:
    if not isinstance(message, dict):
        raise BadValue(column, message, "a message is wanted as an object with role and content")
    role = next((message[key] for key in _ROLE_KEYS if key in message), None)
    content = next((message[key] for key in _TEXT_KEYS if key in message), None)
    known = ROLES.get(str(role).lower())
    if known is None:
        raise BadValue(column, role, "a message's role is unknown; user, assistant, system and tool are known")
    if isinstance(content, list):  # pieces of typed content
        content = "".join(str(piece.get("text", "")) for piece in content if isinstance(piece, dict))
    text = plain_text(content, column)
    if known == "assistant" and not text:
        raise BadValue(column, message, "an assistant's message is empty")
    return known, text


def _first_text(row: Mapping[str, object], column: str, what: str) -> str:
    """The column's text; where it holds messages, those of the last turn (TRL writes prompts and choices so)."""
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
