"""Prepares texts with labels. A text over the maximum length is truncated, or becomes several windows."""

from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from holdfast.core.plan import Choice
from holdfast.core.prepared import Manifest, SplitSize
from holdfast.core.progress import Progress
from holdfast.data.examples import content_hash
from holdfast.data.shards import TextWriter, TokenWriter, write_array
from holdfast.data.survey_table import TableSurvey
from holdfast.data.tokenizer import ModelTokenizer, batches

WINDOW_OVERLAP = 8  # a window shares an eighth of its tokens with the previous one
MOST_WINDOWS = 16  # of one text; with more, a few long texts could take most of the run's time
_COUNTED_TEXTS = 2000
_BYTES_OF_A_CHARACTER = 4  # at most, in UTF-8
_WINDOW_FROM = 0.1  # share of overlong texts from which windows are worth their cost


def prepare_classify(
    survey: TableSurvey, tokens: ModelTokenizer, length: int, overlong: str, folder: Path, on_progress: Progress
) -> Manifest:
    """Write the arrays; returns what the manifest says about them."""
    choice = choose_overlong(survey, tokens, length, overlong)
    numbers = {name: at for at, name in enumerate(survey.labels)}
    splits = {name: _ClassifySplit(folder, name, choice.value == "window") for name in survey.facts.splits}
    before, after = tokens.marks
    room = length - len(before) - len(after)
    over = lost_tokens = done = 0
    for batch in batches(survey.examples(), length=lambda found: len(found.example.parts[0][1])):
        ids = tokens.encode([found.example.parts[0][1] for found in batch])
        for found, body in zip(batch, ids, strict=True):
            pieces = list(windows(body, room)) if choice.value == "window" else [body[:room]]
            over += len(body) > room
            lost_tokens += max(0, len(body) - _reach(pieces, room))
            marked = [(before, piece, after) for piece in pieces]
            labels = [numbers[label] for label in found.example.labels]
            splits[found.split].add(found.row, found.example.parts[0][1], marked, labels)
        done += len(batch)
        on_progress("tokenizing", done, survey.facts.rows)
    counts = {name: split.close(folder, len(numbers), survey.facts.multi_label) for name, split in splits.items()}
    return Manifest(
        task="classify",
        splits=counts,
        labels=survey.labels,
        multi_label=survey.facts.multi_label,
        overlong=choice.value,
        overlong_rows=over,
        overlong_lost_tokens=lost_tokens,
        choices={"overlong": choice},
    )


def choose_overlong(survey: TableSurvey, tokens: ModelTokenizer, length: int, requested: str) -> Choice[str]:
    """Truncate long texts where they are few; read them in windows where many would lose their end."""
    if requested != "auto":
        return Choice(requested, "as requested")
    share = _share_over(survey, tokens, length)
    if share < _WINDOW_FROM:
        return Choice("truncate", f"{share:.1%} of the texts have more than {length:,} tokens and lose their end")
    return Choice("window", f"{share:.1%} of the texts have more than {length:,} tokens and are read in windows")


def _share_over(survey: TableSurvey, tokens: ModelTokenizer, length: int) -> float:
    """The share of texts with more tokens than this: as the survey counted them, or in about 2,000 of them.

    `train` surveys without a tokenizer, because the task it finds decides which model is used.
    """
    lengths = survey.tally.lengths["text"]
    if lengths.token_counts:
        return lengths.share_over(length)
    if lengths.longest_characters * _BYTES_OF_A_CHARACTER <= length:  # a token has at least one byte
        return 0.0
    every = max(1, len(survey.tally) // _COUNTED_TEXTS)
    texts = (found.example.parts[0][1] for found in survey.examples())
    counts = tokens.count(text for text in texts if content_hash(text) % every == 0)
    return sum(count > length for count in counts) / max(1, len(counts))


def windows(body: list[int], room: int) -> Iterator[list[int]]:
    """Pieces of a text that overlap a little and together cover it, or the start of a very long one."""
    step = room - room // WINDOW_OVERLAP
    for number in range(MOST_WINDOWS):
        start = number * step
        yield body[start : start + room]
        if start + room >= len(body):
            return


def _reach(pieces: list[list[int]], room: int) -> int:
    """How far into a text its pieces go."""
    return (len(pieces) - 1) * (room - room // WINDOW_OVERLAP) + len(pieces[-1])


class _ClassifySplit:
    """Writes one split."""

    def __init__(self, folder: Path, name: str, with_windows: bool):
        self._name = name
        self._tokens = TokenWriter(folder, name)
        self._texts = TextWriter(folder, name) if name != "train" else None
        self._windows = array("q", (0,)) if with_windows else None
        self._rows = array("q")
        self._labels = array("i")
        self._label_starts = array("q", (0,))

    def add(self, row: int, text: str, pieces: list[tuple[Any, ...]], labels: list[int]) -> None:
        """Append one example; each of its pieces gets the labels."""
        if self._texts:
            self._texts.add(text)
        for piece in pieces:
            self._tokens.add(*piece)
            self._labels.extend(labels)
            self._label_starts.append(len(self._labels))
        if self._windows is not None:
            self._windows.append(len(self._tokens))
        self._rows.append(row)

    def close(self, folder: Path, label_count: int, is_multi: bool) -> SplitSize:
        """Finish the files."""
        token_count = self._tokens.close()
        if self._texts:
            self._texts.close()
        write_array(folder, f"{self._name}.rows", self._rows, np.int64)
        if self._windows is not None:
            write_array(folder, f"{self._name}.windows", self._windows, np.int64)
        labels = np.asarray(self._labels, dtype=np.int64)
        if is_multi:
            counts = np.diff(np.asarray(self._label_starts))
            table = np.zeros((len(counts), label_count), dtype=np.float32)
            table[np.repeat(np.arange(len(counts)), counts), labels] = 1.0
            write_array(folder, f"{self._name}.labels", table, np.float32)
        else:
            write_array(folder, f"{self._name}.labels", labels, np.int64)
        return SplitSize(rows=len(self._rows), tokens=token_count)
