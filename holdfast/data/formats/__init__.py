"""Turns rows into examples, one module for each task."""

from collections.abc import Callable, Mapping

from holdfast.data.formats.causal import ConversationRows
from holdfast.data.formats.classify import LabelledRows
from holdfast.data.formats.example import Example
from holdfast.data.formats.two_tower import MatchRows
from holdfast.data.layout import Layout

__all__ = ("Example", "reader_for")

RowReader = Callable[[Mapping[str, object]], Example | None]


def reader_for(layout: Layout, min_score: float | None = None) -> RowReader:
    """The function that makes an example of a row.

    It raises BadValue for a row that cannot be used, and gives None for a pair below the lowest score.
    """
    if layout.task == "classify":
        return LabelledRows(layout).read
    if layout.task == "causal":
        return ConversationRows(layout).read
    return MatchRows(layout, min_score).read
