"""Rows for classifying: a text and its labels."""

from collections.abc import Mapping

from holdfast.data.badrows import BadValue
from holdfast.data.formats.example import Example, optional_text, text_of
from holdfast.data.layout import Layout
from holdfast.data.profile import MOST_VALUES


class LabelledRows:
    """Reads rows with a text, which may be joined from several columns, and labels."""

    def __init__(self, layout: Layout):
        assert layout.labels is not None
        self._columns = layout.roles["text"]
        self._labels = layout.labels
        self._group = layout.column("group")
        self._known: dict[str, tuple[str, ...]] = {}  # values read before: there are few different ones

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
        text = "\n".join(filter(None, (optional_text(row, column) for column in self._columns)))
        if not text:
            raise BadValue(" + ".join(self._columns), "", "the text is empty")
        return text
