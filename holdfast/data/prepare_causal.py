"""Prepares conversations and plain texts for a causal model, with a flag on every token to learn.

In a conversation, the turns of the assistant are learned, each with its end token. A plain text is learned as a whole;
a long one is split into pieces, so nothing is lost.
"""

from array import array
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from msgspec import structs

from holdfast.core.errors import RequestError, set_to
from holdfast.core.plan import Choice
from holdfast.core.prepared import Manifest, SplitSize
from holdfast.core.progress import Progress
from holdfast.data.badrows import BadRows
from holdfast.data.chat import CannotRender, Chat, Span
from holdfast.data.shards import TokenWriter, write_array
from holdfast.data.survey_table import PlacedExample, TableSurvey
from holdfast.data.tokenizer import ModelTokenizer, batches


def prepare_causal(
    survey: TableSurvey, tokens: ModelTokenizer, length: int, template: str | None, folder: Path, on_progress: Progress
) -> Manifest:
    """Write the arrays; returns what the manifest says about them."""
    splits = {name: _CausalSplit(folder, name) for name in survey.facts.splits}
    if survey.layout.form == "text":
        found = _write_texts(survey, tokens, length, splits, on_progress)
    else:
        found = _write_conversations(survey, tokens, length, Chat(tokens, template), splits, on_progress)
    return structs.replace(found, splits={name: split.close(folder) for name, split in splits.items()})


def _write_texts(
    survey: TableSurvey, tokens: ModelTokenizer, length: int, splits: dict[str, "_CausalSplit"], on_progress: Progress
) -> Manifest:
    before, _ = tokens.marks
    end = tokens.id_of(tokens.special("eos_token"))
    pieces = done = 0
    for batch in batches(survey.examples(), length=_characters):
        ids = tokens.encode([found.example.parts[0][1] for found in batch])
        for found, body in zip(batch, ids, strict=True):
            whole = [*before, *body, *end]
            for start in range(0, len(whole), length):
                piece = whole[start : start + length]
                if len(piece) > 1:  # a single token has nothing to predict it from
                    splits[found.split].add(found.row, piece, b"\1" * len(piece))
                    pieces += 1
        done += len(batch)
        on_progress("tokenizing", done, survey.facts.rows)
    because = f"{done:,} texts were split into {pieces:,} pieces of at most {length:,} tokens"
    choices = {"loss": Choice("every token", "plain text"), "pieces": Choice(f"{pieces:,}", because)}
    return Manifest(task="causal", splits={}, choices=choices)


def _write_conversations(
    survey: TableSurvey,
    tokens: ModelTokenizer,
    length: int,
    chat: Chat,
    splits: dict[str, "_CausalSplit"],
    on_progress: Progress,
) -> Manifest:
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
                bad.add(found.path, found.row, "long-prompt", details={"tokens": first})
                continue
            splits[found.split].add(found.row, ids, flags)
            kept += 1
        done += len(batch)
        on_progress("tokenizing", done, survey.facts.rows)
    if not kept:
        raise _nothing_learned(prompt_tokens, length, bad)
    bad.refuse_many(kept)
    return Manifest(
        task="causal",
        splits={},
        chat_template=chat.source,
        overlong_rows=cut,
        bad_rows=tuple(bad.listed),
        bad_row_count=bad.count,
        choices={
            "loss": Choice("only the answers", "the turns of the user are read but not learned"),
            "chat": chat.chosen,
        },
    )


def learned(starts: list[int], spans: list[Span]) -> bytearray:
    """A flag for each token: 1 if it starts inside a span. The spans are in order."""
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
            bad.add(found.path, found.row, "not-rendered", details={"error": error})
            continue
        yield found, text, spans


def _nothing_learned(prompt_tokens: "array[int]", length: int, bad: BadRows) -> RequestError:
    if not prompt_tokens:
        return RequestError(
            "the chat template cannot render any conversation",
            found=bad.most_common() or "no rows",
            try_next=(set_to("chat_template", placeholder="FILE"),),
            setting="chat_template",
        )
    ordered = sorted(prompt_tokens)
    return RequestError(
        "the prompts fill the max length, so no answer is left to learn",
        found=f"the max length is {length:,} tokens; the prompts have {ordered[0]:,} to {ordered[-1]:,}, "
        f"half of them {ordered[len(ordered) // 2]:,} or more",
        try_next=(set_to("max_length", ordered[-1] + 256), "shorten the prompts"),
        setting="max_length",
    )


def _characters(found: PlacedExample) -> int:
    return sum(len(text) for _, text in found.example.parts)


class _CausalSplit:
    """Writes one split."""

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

    def close(self, folder: Path) -> SplitSize:
        """Finish the files."""
        write_array(folder, f"{self._name}.rows", self._rows, np.int64)
        return SplitSize(rows=len(self._rows), tokens=self._tokens.close(), learned_tokens=self._learned)
