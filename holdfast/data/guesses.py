"""Refuses what nothing but a guess would train on as text; whoever says `--task causal` has asked for it."""

from holdfast.core.errors import RequestError
from holdfast.data import names
from holdfast.data.badrows import shortened
from holdfast.data.checks import FEW_ROWS
from holdfast.data.layout import Layout
from holdfast.data.rawfile import open_text, reading
from holdfast.data.read import Source
from holdfast.data.request import DataRequest

_AS_TEXT = "--task causal, to learn to write text like it"


def check_is_table(request: DataRequest, layout: Layout, source: Source) -> None:
    """Refuse lines that are no table, such as a program or a log."""
    dialect = source.dialect
    is_asked = request.task or request.text_columns or request.delimiter or request.header is not None
    if dialect is None or is_asked or layout.form != "text" or names.find(names.TEXT, source.columns):
        return
    if dialect.has_header.value and dialect.cuts:
        return
    with open_text(source.raw) as file, reading(source.path):
        first = next((line.strip() for line in file if line.strip()), "")
    why = "it has no header" if dialect.cuts else "no delimiter cuts its lines evenly"
    raise RequestError(
        f"{source.path.name} is no table whose columns say what to learn",
        seen=f"{why}; it begins with {shortened(first)}",
        try_next=(
            _AS_TEXT,
            "a first row that names the columns, such as text and label, or instruction and output",
        ),
    )


def check_is_corpus(request: DataRequest, layout: Layout, source: Source, rows: int) -> None:
    """Refuse a table with a few rows of text and nothing beside them; a file of prose is what it is."""
    is_asked = request.task or request.text_columns
    if rows >= FEW_ROWS or layout.form != "text" or source.kind == "text" or is_asked:
        return
    columns = ", ".join(map(repr, source.columns))
    raise RequestError(
        f"{rows} rows of text are too few to guess what is to be learned from them",
        seen=f"column {layout.roles['text'][0]!r} would be taken for causal, to write text like it; columns: {columns}",
        try_next=(
            _AS_TEXT,
            "a column of labels, or of answers, beside it; --label-column NAME where its name does not tell",
        ),
    )
