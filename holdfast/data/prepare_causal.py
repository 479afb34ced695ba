"""Prepares conversations and plain texts for a causal model, with a flag on every token to learn.

In a conversation, the turns of the assistant are learned, each with its end token. A plain text is learned as a whole;
a long one is split into pieces, so nothing is lost.
"""

from array import array
from bisect import bisect_left
from collections.abc import Collection
from pathlib import Path

import numpy as np
from msgspec import structs

from holdfast.core.errors import RequestError, set_to
from holdfast.core.facts import SPLITS
from holdfast.core.plan import Choice
from holdfast.core.prepared import Manifest, SplitSize
from holdfast.data.badrows import BadRows
from holdfast.data.chat import CannotRender, Chat, Span
from holdfast.data.encoding_batches import EncodingBatches
from holdfast.data.examples import Example
from holdfast.data.shards import TokenWriter, copy_tokens, open_array, remove_arrays, write_array
from holdfast.data.sources import Sink
from holdfast.data.tally import Tally
from holdfast.data.tokenizer import ModelTokenizer

_ALL = "all"  # the arrays of the draft with every example
_Rendered = tuple[int, Path, int, str, list[Span]]  # number, file, row, text, what is learned of it


class _CausalWriter(Sink):
    """Writes the examples of each split, once the splits are known, from one token array of all."""

    def __init__(self, folder: Path):
        self._folder = folder
        self._tokens = TokenWriter(folder, _ALL, with_flags=True)
        self._owners = array("q")  # the example of each text of the token array
        self._added = 0  # examples

    def finish(self, tally: Tally, labels: tuple[str, ...]) -> None:
        """Write every split."""
        owners = np.asarray(self._owners, np.int64)
        codes, places = np.frombuffer(tally.splits, np.uint8), np.frombuffer(tally.rows, np.uint64)
        sizes = {}
        for code, name in enumerate(SPLITS):
            if code not in tally.splits:
                continue
            rows = np.flatnonzero(codes[owners] == code)
            count = copy_tokens(self._folder, _ALL, rows, name)
            write_array(self._folder, f"{name}.rows", places[owners[rows]], np.int64)
            flags = open_array(self._folder, f"{name}.learn")
            sizes[name] = SplitSize(rows=len(rows), tokens=count, learned_tokens=int(np.sum(flags, dtype=np.int64)))
        remove_arrays(self._folder, _ALL)
        self.manifest = Manifest(task="causal", splits=sizes, choices=self.choices())

    def choices(self) -> dict[str, Choice[str]]:
        """What was decided about the texts."""
        raise NotImplementedError


class TextPieceWriter(_CausalWriter):
    """Plain texts, split into pieces of at most the maximum length."""

    def __init__(self, tokens: ModelTokenizer, length: int, folder: Path):
        super().__init__(folder)
        self._length = length
        self._before, self._end = tokens.marks[0], tokens.id_of(tokens.special("eos_token"))
        self._batches = EncodingBatches(tokens.encode, self._write)

    def add(self, example: Example, path: Path, row: int) -> None:
        """Take one text."""
        self._batches.add(example.parts[0][1], len(example.parts[0][1]))

    def end_rows(self, bad: BadRows) -> Collection[int]:
        """Write what is still held."""
        self._batches.end()
        self._tokens.close()
        return ()

    def choices(self) -> dict[str, Choice[str]]:
        """Into how many pieces the texts were split."""
        pieces = len(self._owners)
        because = f"{self._added:,} texts were split into {pieces:,} pieces of at most {self._length:,} tokens"
        return {"loss": Choice("every token", "plain text"), "pieces": Choice(f"{pieces:,}", because)}

    def _write(self, texts: list[str], encoded: list[list[int]]) -> None:
        for body in encoded:
            whole = [*self._before, *body, *self._end]
            for start in range(0, len(whole), self._length):
                piece = whole[start : start + self._length]
                if len(piece) > 1:  # a single token has nothing to predict it from
                    self._tokens.add(piece, flags=b"\1" * len(piece))
                    self._owners.append(self._added)
            self._added += 1


class ConversationWriter(_CausalWriter):
    """Conversations, rendered with the chat template and truncated to the maximum length."""

    def __init__(self, tokens: ModelTokenizer, length: int, chat: Chat, folder: Path):
        super().__init__(folder)
        self._length, self._chat = length, chat
        self._batches = EncodingBatches(
            lambda batch: tokens.encode_with_places([text for *_, text, _ in batch]), self._write
        )
        self._bad = BadRows(1.0)
        self._unusable: list[int] = []
        self._prompt_tokens = array("q")
        self._cut = 0

    def add(self, example: Example, path: Path, row: int) -> None:
        """Take one conversation."""
        number, self._added = self._added, self._added + 1
        try:
            text, spans = self._chat.render(example.parts)
        except CannotRender as error:
            self._bad.add(path, row, "not-rendered", details={"error": error})
            self._unusable.append(number)
            return
        self._batches.add((number, path, row, text, spans), len(text))

    def end_rows(self, bad: BadRows) -> Collection[int]:
        """Write what is still held; returns the conversations of which nothing is left to learn."""
        self._batches.end()
        self._tokens.close()
        if not self._owners:
            raise _nothing_learned(self._prompt_tokens, self._length, self._bad)
        bad.absorb(self._bad, len(self._owners))
        return self._unusable

    def finish(self, tally: Tally, labels: tuple[str, ...]) -> None:
        """Write every split."""
        super().finish(tally, labels)
        self.manifest = structs.replace(
            self.manifest,
            chat_template=self._chat.source,
            overlong_rows=self._cut,
            bad_rows=tuple(self._bad.listed),
            bad_row_count=self._bad.count,
        )

    def choices(self) -> dict[str, Choice[str]]:
        """What is learned, and how conversations were rendered."""
        loss = Choice("only the answers", "the turns of the user are read but not learned")
        return {"loss": loss, "chat": self._chat.chosen}

    def _write(self, batch: list[_Rendered], encoded: list[tuple[list[int], list[int]]]) -> None:
        for (number, path, row, _, spans), (ids, starts) in zip(batch, encoded, strict=True):
            flags = learned(starts, spans)
            first = flags.find(1)
            self._prompt_tokens.append(first if first >= 0 else len(ids))
            self._cut += len(ids) > self._length
            flags = flags[: self._length]
            if 1 not in flags:
                self._bad.add(path, row, "long-prompt", details={"tokens": first})
                self._unusable.append(number)
                continue
            self._tokens.add(ids[: self._length], flags=flags)
            self._owners.append(number)


def learned(starts: list[int], spans: list[Span]) -> bytearray:
    """A flag for each token: 1 if it starts inside a span. The spans are in order."""
    flags = bytearray(len(starts))
    for begin, end in spans:
        first, last = bisect_left(starts, begin), bisect_left(starts, end)
        flags[first:last] = b"\1" * (last - first)
    return flags


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
