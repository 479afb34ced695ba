"""Prepares texts with labels. A text over the maximum length is truncated, or becomes several windows."""

from array import array
from collections.abc import Collection, Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from holdfast.core.facts import SPLITS
from holdfast.core.plan import Choice
from holdfast.core.prepared import Manifest, SplitSize
from holdfast.data.badrows import BadRows
from holdfast.data.encoding_batches import EncodingBatches
from holdfast.data.examples import Example
from holdfast.data.shards import (
    TextWriter,
    TokenWriter,
    copy_texts,
    copy_tokens,
    open_tokens,
    remove_arrays,
    write_array,
)
from holdfast.data.sources import Sink
from holdfast.data.tally import Tally
from holdfast.data.tokenizer import ModelTokenizer

WINDOW_OVERLAP = 8  # a window shares an eighth of its tokens with the previous one
MOST_WINDOWS = 16  # of one text; with more, a few long texts could take most of the run's time
_WINDOW_FROM = 0.1  # share of overlong texts from which windows are worth their cost
_ALL, _LONG = "all", "long"  # arrays of the draft: every text, and the overlong ones as a whole


class LabeledWriter(Sink):
    """Tokenizes texts as they are read, and writes them with their labels once the splits are known."""

    def __init__(self, tokens: ModelTokenizer, length: int, overlong: str, is_multi: bool, folder: Path):
        self._length, self._overlong, self._folder = length, overlong, folder
        self._before, self._after = tokens.marks
        self._room = length - len(self._before) - len(self._after)
        self._reach = self._room + (MOST_WINDOWS - 1) * (self._room - self._room // WINDOW_OVERLAP)
        self._batches = EncodingBatches(tokens.encode, self._write)
        self._tokens, self._texts = TokenWriter(folder, _ALL), TextWriter(folder, _ALL)
        self._long = TokenWriter(folder, _LONG)
        self._long_rows, self._long_sizes = array("q"), array("q")  # numbers of the overlong texts, and their tokens
        self.is_multi = is_multi

    def add(self, example: Example, path: Path, row: int) -> None:
        """Take one text."""
        text = example.parts[0][1]
        self._texts.add(text)
        self._batches.add(text, len(text))

    def end_rows(self, bad: BadRows) -> Collection[int]:
        """Write what is still held."""
        self._batches.end()
        for writer in (self._tokens, self._texts, self._long):
            writer.close()
        return ()

    def finish(self, tally: Tally, labels: tuple[str, ...]) -> None:
        """Write every split."""
        choice = self._choose_overlong(len(tally))
        numbers = np.empty(len(labels), np.int64)  # of each label, by the number it has in the tally
        for at, name in enumerate(labels):
            numbers[tally.label_numbers[name]] = at
        codes = np.frombuffer(tally.splits, np.uint8)
        sizes = {}
        for code, name in enumerate(SPLITS):
            rows = np.flatnonzero(codes == code)
            if len(rows):
                sizes[name] = self._write_split(name, rows, tally, numbers, choice.value == "window")
        remove_arrays(self._folder, _ALL)
        remove_arrays(self._folder, _LONG)
        reach = self._reach if choice.value == "window" else self._room
        self.manifest = Manifest(
            task="classify",
            splits=sizes,
            labels=labels,
            multi_label=self.is_multi,
            overlong=choice.value,
            overlong_rows=len(self._long_rows),
            overlong_lost_tokens=sum(max(0, size - reach) for size in self._long_sizes),
            choices={"overlong": choice},
        )

    def _write(self, texts: list[str], encoded: list[list[int]]) -> None:
        before, after, room = self._before, self._after, self._room
        for body in encoded:
            if len(body) > room:
                self._long.add(body[: self._reach])
                self._long_rows.append(len(self._tokens))
                self._long_sizes.append(len(body))
                body = body[:room]
            self._tokens.add(before, body, after)

    def _choose_overlong(self, count: int) -> Choice[str]:
        """Truncate long texts where they are few; read them in windows where many would lose their end."""
        if self._overlong != "auto":
            return Choice(self._overlong, "as requested")
        share = len(self._long_rows) / max(1, count)
        over = f"{share:.1%} of the texts have more than {self._length:,} tokens"
        if share < _WINDOW_FROM:
            return Choice("truncate", f"{over} and lose their end")
        return Choice("window", f"{over} and are read in windows")

    def _write_split(
        self, name: str, rows: NDArray[np.int64], tally: Tally, numbers: NDArray[np.int64], with_windows: bool
    ) -> SplitSize:
        pieces = np.ones(len(rows), np.int64)
        if with_windows:
            pieces, token_count = self._write_windows(name, rows)
            write_array(self._folder, f"{name}.windows", np.concatenate(([0], np.cumsum(pieces))), np.int64)
        else:
            token_count = copy_tokens(self._folder, _ALL, rows, name)
        if name != "train":
            copy_texts(self._folder, _ALL, rows, name)
        write_array(self._folder, f"{name}.rows", np.frombuffer(tally.rows, np.uint64)[rows], np.int64)
        self._write_labels(name, rows, tally, numbers, pieces)
        return SplitSize(rows=len(rows), tokens=token_count)

    def _write_windows(self, name: str, rows: NDArray[np.int64]) -> tuple[NDArray[np.int64], int]:
        """Write each text as windows; returns how many each has, and the number of tokens."""
        short, long = open_tokens(self._folder, _ALL), open_tokens(self._folder, _LONG)
        place_of = {row: at for at, row in enumerate(self._long_rows)}
        writer = TokenWriter(self._folder, name)
        pieces = np.ones(len(rows), np.int64)
        for at, row in enumerate(rows.tolist()):
            place = place_of.get(row)
            if place is None:
                writer.add(short[row].tolist())
                continue
            cut = list(windows(long[place].tolist(), self._room))
            pieces[at] = len(cut)
            for piece in cut:
                writer.add(self._before, piece, self._after)
        return pieces, writer.close()

    def _write_labels(
        self,
        name: str,
        rows: NDArray[np.int64],
        tally: Tally,
        numbers: NDArray[np.int64],
        pieces: NDArray[np.int64],
    ) -> None:
        """Write the labels of each text or window: one number, or a row of 0 and 1."""
        held, starts = tally.label_table()
        labels, first = numbers[np.asarray(held, np.int64)], np.asarray(starts, np.int64)
        if not self.is_multi:
            write_array(self._folder, f"{name}.labels", np.repeat(labels[first[rows]], pieces), np.int64)
            return
        counts = first[rows + 1] - first[rows]
        table = np.zeros((len(rows), len(numbers)), np.float32)
        places = np.repeat(first[rows] - (np.cumsum(counts) - counts), counts) + np.arange(int(counts.sum()))
        table[np.repeat(np.arange(len(rows)), counts), labels[places]] = 1.0
        write_array(self._folder, f"{name}.labels", np.repeat(table, pieces, axis=0), np.float32)


def windows(body: list[int], room: int) -> Iterator[list[int]]:
    """Pieces of a text that overlap a little and together cover it, or the start of a very long one."""
    step = room - room // WINDOW_OVERLAP
    for number in range(MOST_WINDOWS):
        start = number * step
        yield body[start : start + room]
        if start + room >= len(body):
            return
