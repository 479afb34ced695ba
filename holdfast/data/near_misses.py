"""Reads near-misses, passages that look right for a query and are not, from a file of JSON lines of their own.

Each line has a query and a list: `{"query": ..., "negatives": [...]}`. Both are texts, ids of a BEIR folder, or row
numbers of a file of vectors, as the data they belong to has them.
"""

from collections.abc import Iterator

from holdfast.core.errors import RequestError
from holdfast.data import names
from holdfast.data.badrows import BadRows, BadValue
from holdfast.data.formats.example import plain_text
from holdfast.data.formats.two_tower import passages
from holdfast.data.read import open_source
from holdfast.data.request import DataRequest

_QUERY = ("query", "query_id", "qid", "anchor", "question", "index", "_id", "id")


def read_near_misses(request: DataRequest) -> Iterator[tuple[str, list[str]]]:
    """Every query with its near-misses."""
    assert request.negatives is not None
    source = open_source(request.negatives, request)
    query_column = names.find(_QUERY, source.columns)
    negatives = names.find_all(names.NEGATIVE, source.columns)
    if not query_column or not negatives:
        raise RequestError(
            f"{source.path.name} has no query with a list of near-misses",
            seen=f"its columns: {', '.join(source.columns)}",
            try_next=('give lines of {"query": ..., "negatives": [...]}',),
        )
    bad, count = BadRows(request.max_bad_share), 0
    for row, values in source.rows(bad):
        try:
            query = plain_text(values.get(query_column), query_column)
            found = [text for column in negatives for text in passages(values.get(column), column)]
            if not query:
                raise BadValue(query_column, "", "the query is empty")
        except BadValue as value:
            bad.add_value(source.path, row, value)
            continue
        count += 1
        yield query, found
    bad.refuse_many(count)
