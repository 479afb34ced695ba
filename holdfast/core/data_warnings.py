"""What the owner of a dataset should know before training on it: warnings as values, with the sentence of each kind."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from holdfast.core.errors import Action, advice_text

_SHOWN = 5  # of a longer list


@dataclass(frozen=True, slots=True, kw_only=True)
class DataWarning:
    """One warning: its kind, the values that its sentence names, and what a person may do about it."""

    kind: str
    values: Mapping[str, str | int | float | tuple[str, ...]] = field(default_factory=dict)
    action: Action | None = None

    @property
    def text(self) -> str:
        """The warning as a sentence, without the advice."""
        shown = {name: _List(value) if isinstance(value, tuple) else value for name, value in self.values.items()}
        return SENTENCES[self.kind].format_map(shown) if self.kind in SENTENCES else self.kind

    @property
    def line(self) -> str:
        """The warning with its advice, as the command line writes it."""
        return f"{self.text}; try {advice_text(self.action)}" if self.action else self.text


def data_warning(kind: str, action: Action | None = None, **values: str | int | float | tuple[str, ...]) -> DataWarning:
    """A warning of this kind."""
    return DataWarning(kind=kind, values=values, action=action)


# `{labels:q}` quotes every item of a list.
SENTENCES = {
    # Files
    "unread-split": "{file} looks like the {split} split of this dataset but is not read",
    "unread-files": "not read: {files}",
    "unread-sheets": "only the sheet {sheet!r} of {file} is read, not {others:q}",
    "misnamed": "{file} is named {extension} but holds {format}, and is read as that",
    "guessed-encoding": "{file} is read as {encoding} ({because})",
    "no-header": "{file} is read without a header ({because})",
    # Columns
    "other-task": "the data could also be used for {task} ({form})",
    "unused-preferences": "column {column!r} is not used, because Holdfast does not train on preferences",
    "unread-title": "column {column!r} is not read",
    "related-rows": "rows with the same {column!r} may be put in different splits",
    # Rows
    "bad-rows": "{rows:,} bad rows are left out: {reasons}",
    "swallowed-rows": "{file}, row {row}: a quote opens here and closes on line {end}; {lines} lines between look like "
    "rows",
    "open-quote": "{file}, row {row}: a quote opens and never closes, so it is read as part of the text {found}",
    "more-quotes": "{rows:,} more rows have such a quote",
    "lost-letters": "{texts:,} texts contain U+FFFD, which stands for letters lost in an earlier conversion",
    "low-scores": "{rows:,} pairs with a score below {min_score:g} are left out",
    "few-rows": "only {rows} rows: the results of an evaluation will mean little",
    "nothing-measured": "no rows for validation or test (all {rows:,} are for training), so nothing will be measured",
    "no-validation": "no rows for validation: the last step is kept, even if an earlier one was better",
    "duplicates": "{rows:,} rows are duplicates of an earlier one (ignoring case and spaces)",
    "conflicting-labels": "{texts:,} texts occur with different labels (row {rows})",
    "leakage": "{rows:,} {split} rows share their {part} with a row of another split (leakage)",
    "overlong": "{share:.1%} of the {role}s are over the model's limit of {limit:,} tokens (longest: {longest:,})",
    # Labels
    "single-examples": "labels with only one example: {labels:q}",
    "imbalance": "the classes are imbalanced: {most!r} has {most_rows:,} rows and {least!r} has {least_rows:,}, "
    "so accuracy alone is misleading",
    "label-values": "the labels look like {values} ({labels:q}) and are treated as names of classes",
    "similar-labels": "labels that differ only in case or spaces are treated as different: {labels:q}",
    "unseen-labels": "labels in the {split} split that never occur in training: {labels:q}",
    # Two towers
    "duplicate-vectors": "{queries:,} query vectors occur in several rows",
    "ungrouped-vectors": "the file has no array of groups (such as article_ids), so vectors of one article may become "
    "each other's negatives",
    "duplicate-passages": "{passages:,} passages have the same text as another one",
    "unused-queries": "{queries:,} queries have no judgment and are not used",
}  # fmt: skip


class _List(tuple[str, ...]):
    """A list as a sentence shows it: the first items, quoted where the format asks for it."""

    def __format__(self, spec: str) -> str:
        items = [repr(item) if spec == "q" else item for item in self[:_SHOWN]]
        more = f" and {len(self) - _SHOWN:,} more" if len(self) > _SHOWN else ""
        return ", ".join(items) + more
