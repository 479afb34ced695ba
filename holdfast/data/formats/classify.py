"""Rows for classifying: a text and its labels."""

from collections.abc import Mapping

from holdfast.data.badrows import BadValue
from holdfast.data.formats.example import Example, optional_text, text_of
from holdfast.data.layout import Layout


class LabelledRows:
    """Reads rows with a text, which may be joined from several columns, and labels."""

    def __init__(self, layout: Layout):
        assert layout.labels is not None
        self._columns = layout.roles["text"]
        self._labels = layout.labels
        self._group = layout.column("group")

    def read(self, row: Mapping[str, object]) -> Example:
        """Make an example of a row."""
        text = self._text(row)
        return Example(
            parts=(("text", text),), labels=self._labels.read(row), group=optional_text(row, self._group), key=text
        )

    def _text(self, row: Mapping[str, object]) -> str:
        if len(self._columns) == 1:
            return text_of(row, self._columns[0])
        text = "\n".join(filter(None, (optional_text(row, column) for column in self._columns)))
        if not text:
            raise BadValue(" + ".join(self._columns), "", "the text is empty")
        return text
