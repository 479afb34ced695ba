"""The form in which a person decides how a dataset is read: what stays at "find out" is found out by the survey."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from holdfast.service.jobs import datasets
from holdfast.service.jobs.models import Dataset

TASK_WORDS = {"classify": "classify texts", "causal": "language model", "two-tower": "search (two-tower)"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """A thing to choose: its name, the words beside it, and the options with the chosen ones marked."""

    name: str
    words: str
    help: str
    options: Sequence[tuple[str, str, bool]] = ()
    value: str = ""
    is_many: bool = False


def choice_fields(dataset: Dataset) -> Iterator[Field]:
    """Everything that can be chosen, with what was."""
    chosen, columns = dataset.choices, list(dataset.preview.get("columns", ()))
    by_itself = ("", "find out", False)

    def choice(name: str, options: Sequence[tuple[str, str]]) -> tuple[tuple[str, str, bool], ...]:
        now = str(chosen.get(name, ""))
        return (by_itself, *((value, words, value == now) for value, words in options))

    def flag(name: str) -> tuple[tuple[str, str, bool], ...]:
        now = chosen.get(name)
        return (by_itself, ("yes", "yes", now is True), ("no", "no", now is False))

    named = [(column, column) for column in columns]
    yield Field(name="task", words="Task", help="What to train.", options=choice("task", list(TASK_WORDS.items())))
    texts = chosen.get("text_column", [])
    yield Field(
        name="text_column",
        words="Text columns",
        help="Several are joined; none: find out.",
        options=[(column, column, column in texts) for column in columns],
        is_many=True,
    )
    yield Field(name="label_column", words="Label column", help="For classify.", options=choice("label_column", named))
    yield Field(
        name="group_column",
        words="Group column",
        help="Rows with the same value here stay in one split.",
        options=choice("group_column", named),
    )
    encodings = [(name, name) for name in datasets.ENCODINGS]
    yield Field(name="encoding", words="Encoding", help="Of a text file.", options=choice("encoding", encodings))
    marks = [(",", "comma"), (";", "semicolon"), ("tab", "tab"), ("|", "bar"), (":", "colon")]
    yield Field(name="delimiter", words="Delimiter", help="Of a CSV file.", options=choice("delimiter", marks))
    yield Field(name="header", words="First row names the columns", help="Of a CSV file.", options=flag("header"))
    yield Field(name="multi_label", words="Several labels in a row", help="For classify.", options=flag("multi_label"))
    shares = [("0.01", "1 %"), ("0.05", "5 %"), ("0.2", "20 %"), ("0.5", "50 %")]
    yield Field(
        name="max_bad_rows",
        words="Bad rows allowed",
        help="More than this share, and the file is refused.",
        options=choice("max_bad_rows", shares),
    )
    score = chosen.get("min_score")
    yield Field(
        name="min_score",
        words="Lowest score of a pair",
        help="Of scored pairs, for search.",
        value="" if score is None else f"{score:g}",
    )
