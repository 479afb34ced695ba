"""One adapter for each form that a dataset can have: rows in, checked examples out.

    rows     tables, chat and instruction files, pairs, folders of classes: one example from each row
    beir     a BEIR folder: passages, queries and judgments
    vectors  NPZ files of precomputed vectors

A source knows its columns and task once it is opened. `read` goes through the data once, notes the rows that cannot be
used, makes the splits and hands every example to a sink, which may tokenize it. `data.survey_dataset` opens sources.
"""

from array import array
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, Protocol

from holdfast.core.data_warnings import DataWarning
from holdfast.core.facts import Lengths
from holdfast.core.plan import Choice
from holdfast.core.progress import Progress
from holdfast.data.badrows import BadRows
from holdfast.data.data_request import DataRequest
from holdfast.data.examples import Example
from holdfast.data.layout import ColumnLayout
from holdfast.data.rawfile import RawFile
from holdfast.data.tally import Tally

Find = Callable[[str], int | None]  # the number of a text or an id


class PlacedExample(NamedTuple):
    """An example with its split, file and row."""

    split: str
    path: Path
    row: int
    example: Example


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """What one pass over a source found."""

    rows: int  # usable ones
    splits: Mapping[str, int]
    choices: Mapping[str, Choice[str]]
    labels: Mapping[str, int] = field(default_factory=dict)  # in the order of their numbers
    lengths: Mapping[str, Lengths] = field(default_factory=dict)
    histograms: Mapping[str, list[tuple[int, int]]] = field(default_factory=dict)
    warnings: tuple[DataWarning, ...] = ()


class Sink:
    """Takes what a pass reads. `finish` is called last, when the splits are known."""

    def add(self, example: Example, path: Path, row: int) -> None:
        """Take one example, in reading order."""

    def end_rows(self, bad: BadRows) -> Collection[int]:
        """Take note that there are no more examples; returns the numbers of those that turned out to be unusable."""
        return ()

    def finish(self, tally: Tally, labels: tuple[str, ...]) -> None:
        """Take the split of every example, and the names of the labels in the order of their numbers."""

    def add_passage(self, text: str, group: int) -> None:
        """Take a passage of a BEIR folder, which gets the next number; -1 for a passage without a group."""

    def add_query(self, text: str) -> None:
        """Take a query of a BEIR folder, which gets the next number."""

    def finish_judged(
        self, judged: Mapping[str, "array[int]"], near: "array[int]", find_query: Find, find_passage: Find
    ) -> None:
        """Take the judgments of a BEIR folder: query, passage, query, passage, ... of each split, and near-misses."""

    def lengths(self) -> Mapping[str, Lengths]:
        """Lengths by role, where the sink has measured them better."""
        return {}


class Source(Protocol):
    """A dataset that was opened: its columns and task are known, its rows are read by `read`."""

    @property
    def request(self) -> DataRequest:
        """What was requested."""

    @property
    def layout(self) -> ColumnLayout:
        """The task, and what the columns are for."""

    @property
    def columns(self) -> tuple[str, ...]:
        """Every column."""

    @property
    def files(self) -> tuple[tuple[str, RawFile], ...]:
        """(split, file) in reading order."""

    def read(self, sink: Sink | None, bad: BadRows, on_progress: Progress) -> Findings:
        """Read everything once."""
