"""Rows for two towers: a query, the passages that answer it and near-misses that do not; or passages of articles."""

from collections.abc import Mapping

from holdfast.data.badrows import BadValue
from holdfast.data.formats.example import Example, optional_text, plain_text, text_of
from holdfast.data.labels import as_list
from holdfast.data.layout import Layout

_TEXT_KEYS = ("text", "contents", "content", "passage", "document")


class MatchRows:
    """Reads pairs, triplets, lists of positives and negatives, or passages with their article."""

    def __init__(self, layout: Layout, min_score: float | None):
        self._layout = layout
        self._min_score = min_score
        self._group = layout.column("group")

    def read(self, row: Mapping[str, object]) -> Example | None:
        """Make an example of a row; None for a pair below the lowest score."""
        if not self._is_positive(row):
            return None
        group = optional_text(row, self._group)
        if self._layout.form == "passages of articles":
            text = text_of(row, self._layout.roles["text"][0])
            if not group:
                raise BadValue(self._group or "", "", "the passage belongs to no article")
            return Example(parts=(("passage", text),), group=group, key=text)
        query = text_of(row, self._layout.roles["query"][0], "query")
        column = self._layout.roles["positive"][0]
        positives = passages(row.get(column), column)
        if not positives:
            raise BadValue(column, row.get(column) or "", "no passage that answers the query")
        negatives = [
            text for column in self._layout.roles.get("negative", ()) for text in passages(row.get(column), column)
        ]
        return Example(
            parts=(
                ("query", query),
                *(("positive", text) for text in positives),
                *(("negative", text) for text in negatives),
            ),
            group=group,
            key=query,
        )

    def _is_positive(self, row: Mapping[str, object]) -> bool:
        column = self._layout.column("score")
        if not column or self._min_score is None:
            return True
        try:
            return float(str(row.get(column))) >= self._min_score
        except ValueError:
            raise BadValue(column, row.get(column), "a score is wanted, which is a number") from None


def passages(value: object, column: str) -> list[str]:
    """Passages from a text, a list of texts, or a list of objects with title and text."""
    items = as_list(value) if isinstance(value, list) or (isinstance(value, str) and value.startswith("[")) else None
    texts = [_passage(item, column) for item in (items if items is not None else [value])]
    return [text for text in texts if text]


def _passage(item: object, column: str) -> str:
    if not isinstance(item, dict):
        return plain_text(item, column)
    text = next((plain_text(item[key], column) for key in _TEXT_KEYS if key in item), "")
    title = plain_text(item.get("title"), column)
    return f"{title} {text}".strip()
