"""Turns texts, any file that can be read, or standard input into questions for a model.

A row whose text is empty stays, so that answers line up with the input, but the model does not get it. A row that
cannot be read at all is noted by file and row.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from holdfast.core.errors import RequestError
from holdfast.data import names
from holdfast.data.badrows import BadRows, BadValue, describe
from holdfast.data.data_request import DataRequest
from holdfast.data.examples import optional_text, read_messages
from holdfast.data.read import open_rows
from holdfast.runs.finished_model import FinishedModel
from holdfast.runs.prediction import Question

ENDINGS = (".csv", ".tsv", ".json", ".jsonl", ".ndjson", ".parquet", ".xlsx", ".txt", ".gz")
_TEXT_NAMES = {"classify": names.TEXT, "causal": names.PROMPT + names.TEXT, "two-tower": names.QUERY + names.TEXT}
_ROLES = {"classify": "text", "causal": "prompt", "two-tower": "query"}


@dataclass(slots=True)
class PredictionInputs:
    """The questions, and after they are taken the rows that could not be read."""

    model: FinishedModel
    columns: tuple[str, ...] = ()  # as given; detected when empty
    bad: BadRows = field(default_factory=lambda: BadRows(1.0))
    empty_rows: int = 0

    def texts(self, texts: Sequence[str]) -> Iterator[Question]:
        """One row for each text."""
        for text in texts:
            yield self._asked({"text": text}, self._one(text.strip()))

    def file(self, path: Path) -> Iterator[Question]:
        """The rows of a file."""
        source = open_rows(path, DataRequest(path=path))
        if source.kind == "npz":
            raise RequestError(f"{path.name} holds vectors", try_next=("give a file with texts",))
        take = self._taker(source.columns)
        for place, row in source.rows(self.bad):
            try:
                asked = take(row)
            except BadValue as bad:
                self.bad.add_value(path, place, bad)
                continue
            yield self._asked({key: value for key, value in row.items() if key is not None}, asked)

    def stream(self, stream: IO[str]) -> Iterator[Question]:
        """Standard input: one text or one JSON object per line."""
        for number, line in enumerate(stream, start=1):
            if line.lstrip().startswith("{"):
                try:
                    row = json.loads(line)
                except ValueError as error:
                    place = Path("standard input")
                    self.bad.add(place, number, "not-json", value=line[:80], details={"error": error})
                    continue
                yield self._asked(row, self._taker(tuple(row))(row))
            elif line.strip():
                yield self._asked({"text": line.strip()}, self._one(line.strip()))

    def notes(self) -> list[str]:
        """What to report about the rows after they were taken."""
        said = [describe(bad) for bad in self.bad.listed[:3]]
        more = self.bad.count - len(said)
        said += [f"and {more:,} more rows that could not be read"] if more > 0 else []
        noun = "row" if self.empty_rows == 1 else "rows"
        return said + ([f"skipped {self.empty_rows:,} {noun} without text"] if self.empty_rows else [])

    def _asked(self, given: dict[str, Any], asked: dict[str, Any]) -> Question:
        self.empty_rows += not asked
        return Question(given=given, asked=asked)

    def _one(self, text: str) -> dict[str, Any]:
        if not text:
            return {}
        return {"turns": [["user", text]]} if self.model.is_chat else {"text": text}

    def _taker(self, columns: tuple[str, ...]) -> "_Taker":
        known = self.model.dataset.roles if self.model.dataset else {}
        if self.model.is_chat and not self.columns:
            messages = names.find((*known.get("messages", ()), *names.MESSAGES), columns)
            if messages:
                return _Taker(messages=messages)
        text = self.columns or self._text_columns(columns, known)
        missing = [column for column in text if column not in columns]
        if missing:
            raise RequestError(
                f"there is no column {missing[0]!r}",
                found=f"columns: {', '.join(columns)}",
                try_next=("--text-column NAME",),
            )
        extra = {role: names.find(tuple(known.get(role, ())), columns) for role in ("context", "system")}
        return _Taker(text=tuple(text), is_chat=self.model.is_chat, **extra)

    def _text_columns(self, columns: tuple[str, ...], known: Mapping[str, Any]) -> tuple[str, ...]:
        """The columns the model was trained on, if present; otherwise by name, or the only column."""
        learned = tuple(known.get(_ROLES[self.model.task]) or known.get("text") or ())
        if learned and set(learned) <= set(columns):
            return learned
        found = names.find(_TEXT_NAMES[self.model.task], columns)
        if found or len(columns) == 1:
            return (found or columns[0],)
        raise RequestError(
            "no column is clearly the one with the texts",
            found=f"columns: {', '.join(columns) or 'none'}",
            try_next=("--text-column NAME",),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Taker:
    """Takes the question from a row; nothing when the row has no text."""

    text: tuple[str, ...] = ()
    is_chat: bool = False
    messages: str | None = None
    context: str | None = None
    system: str | None = None

    def __call__(self, row: Mapping[str, Any]) -> dict[str, Any]:
        if self.messages:
            turns = read_messages(row.get(self.messages), self.messages)
            while turns and turns[-1][0] == "assistant":
                turns.pop()  # the model is to write it
            return {"turns": [list(turn) for turn in turns]} if turns else {}
        text = "\n".join(filter(None, (optional_text(row, column) for column in self.text)))
        if not text:
            return {}
        if not self.is_chat:
            return {"text": text}
        if context := optional_text(row, self.context):
            text = f"{text}\n\n{context}"
        system = optional_text(row, self.system)
        return {"turns": [*([["system", system]] if system else []), ["user", text]]}
