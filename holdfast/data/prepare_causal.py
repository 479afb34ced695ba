"""Prepares conversations and plain texts for a causal model, with a flag on every token that is to be learned.

Of a conversation the assistant's turns are learned, each with its end mark. A plain text is learned whole; a long one
is cut into pieces, none of it is lost.
"""

from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from holdfast.core.errors import RequestError
from holdfast.core.plan import Choice
from holdfast.data.badrows import BadRows
from holdfast.data.chat import CannotRender, Chat, Span
from holdfast.data.data_request import Progress
from holdfast.data.shards import TokenWriter, write_array
from holdfast.data.survey_table import PlacedExample, TableSurvey
from holdfast.data.tokenizer import ModelTokenizer, batches


def prepare_causal(
    survey: TableSurvey, tokens: ModelTokenizer, length: int, template: str | None, folder: Path, on_progress: Progress
) -> dict[str, Any]:
    """Write the arrays; gives what the manifest says of them."""
    splits = {name: _Split(folder, name) for name in survey.facts.splits}
    if survey.layout.form == "text":
        found = _write_texts(survey, tokens, length, splits, on_progress)
    else:
        found = _write_conversations(survey, tokens, length, Chat(tokens, template), splits, on_progress)
    return {"splits": {name: split.close(folder) for name, split in splits.items()}, **found}


def _write_texts(
    survey: TableSurvey, tokens: ModelTokenizer, length: int, splits: dict[str, "_Split"], on_progress: Progress
) -> dict[str, Any]:
    before, _ = tokens.marks
    end = tokens.id_of(tokens.special("eos_token"))
    pieces = done = 0
    for batch in batches(survey.examples(), length=_characters):
        ids = tokens.encode([found.example.parts[0][1] for found in batch])
        for found, body in zip(batch, ids, strict=True):
            whole = [*before, *body, *end]
            for start in range(0, len(whole), length):
                piece = whole[start : start + length]
                if len(piece) > 1:  # a lone token has nothing to be learned from
                    splits[found.split].add(found.row, piece, b"\1" * len(piece))
                    pieces += 1
        done += len(batch)
        on_progress("tokenizing", done, survey.facts.rows)
    because = f"{done:,} texts gave {pieces:,} pieces of at most {length:,} tokens"
    return {"choices": {"loss": Choice("every token", "plain text"), "pieces": Choice(f"{pieces:,}", because)}}


def _write_conversations(
    survey: TableSurvey,
    tokens: ModelTokenizer,
    length: int,
    chat: Chat,
    splits: dict[str, "_Split"],
    on_progress: Progress,
) -> dict[str, Any]:
    bad = BadRows(survey.request.max_bad_share)
    kept = cut = done = 0
    prompt_tokens = array("q")
    for batch in batches(survey.examples(), length=_characters):
        rendered = list(_rendered(chat, batch, bad))
        encodings = tokens.encode_with_places([text for _, text, _ in rendered])
        for (found, _, spans), (ids, starts) in zip(rendered, encodings, strict=True):
            flags = learned(starts, spans)
            first = flags.find(1)
            prompt_tokens.append(first if first >= 0 else len(ids))
            cut += len(ids) > length
            ids, flags = ids[:length], flags[:length]
            if 1 not in flags:
                bad.add(
                    found.path,
                    found.row,
                    f"the prompt alone has {first:,} tokens or more, so no answer is left to learn",
                )
                continue
            splits[found.split].add(found.row, ids, flags)
            kept += 1
        done += len(batch)
        on_progress("tokenizing", done, survey.facts.rows)
    if not kept:
        raise _nothing_learned(prompt_tokens, length, bad)
    bad.refuse_many(kept)
    return {
        "chat_template": chat.source,
        "overlong_rows": cut,
        "bad_rows": bad.listed,
        "bad_row_count": bad.count,
        "choices": {
            "loss": Choice("the answers only", "what the user wrote is read, not learned"),
            "chat": chat.chosen,
        },
    }


def learned(starts: list[int], spans: list[Span]) -> bytearray:
    """A flag for each token, by where in the text it starts: 1 inside a span. Spans come in their order."""
    flags = bytearray(len(starts))
    ahead = iter(spans)
    begin, end = next(ahead, (0, 0))
    for at, start in enumerate(starts):
        while start >= end and (following := next(ahead, None)):
            begin, end = following
        flags[at] = begin <= start < end
    return flags


def _rendered(chat: Chat, batch: list[PlacedExample], bad: BadRows) -> Iterator[tuple[PlacedExample, str, list[Span]]]:
    for found in batch:
        try:
            text, spans = chat.render(found.example.parts)
        except CannotRender as error:
            bad.add(found.path, found.row, str(error))
            continue
        yield found, text, spans


def _nothing_learned(prompt_tokens: "array[int]", length: int, bad: BadRows) -> RequestError:
    if not prompt_tokens:
        reason = bad.reasons.most_common(1)[0][0] if bad.reasons else "no rows"
        return RequestError("no conversation can be rendered", seen=reason, try_next=("--chat-template FILE",))
    ordered = sorted(prompt_tokens)
    return RequestError(
        "every answer would be cut away, so there would be nothing to learn",
        seen=f"at most {length:,} tokens are kept; the prompts have {ordered[0]:,} to {ordered[-1]:,}, "
        f"half of them {ordered[len(ordered) // 2]:,} or more",
        try_next=(f"--max-length {ordered[-1] + 256}", "shorten the prompts"),
    )


def _characters(found: PlacedExample) -> int:
    return sum(len(text) for _, text in found.example.parts)


class _Split:
    """One split as it is written."""

    def __init__(self, folder: Path, name: str):
        self._name = name
        self._tokens = TokenWriter(folder, name, with_flags=True)
        self._rows = array("q")
        self._learned = 0

    def add(self, row: int, ids: list[int], flags: bytes | bytearray) -> None:
        """Append one example."""
        self._tokens.add(ids, flags=flags)
        self._rows.append(row)
        self._learned += sum(flags)

    def close(self, folder: Path) -> dict[str, int]:
        """Finish the files; gives rows, tokens and how many of them are learned."""
        tokens = self._tokens.close()
        write_array(folder, f"{self._name}.rows", self._rows, np.int64)
        return {"rows": len(self._rows), "tokens": tokens, "learned_tokens": self._learned}
