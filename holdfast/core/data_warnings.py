"""What the owner of a dataset should know before training on it: warnings as values, with the sentence of each kind."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from holdfast.core.errors import Action, advice_text

Value = str | int | float | tuple[str, ...]
_SHOWN = 5  # of a longer list


@dataclass(frozen=True, slots=True, kw_only=True)
class DataWarning:
    """One warning: its kind, the values that its sentence names, and what a person may do about it."""

    kind: str
    values: Mapping[str, Value] = field(default_factory=dict)
    action: Action | None = None

    @property
    def text(self) -> str:
        """The warning as a sentence, without the advice."""
        shown = {name: _shown(value) for name, value in self.values.items()}
        return SENTENCES[self.kind].format_map(shown) if self.kind in SENTENCES else self.kind

    @property
    def line(self) -> str:
        """The warning with its advice, as the command line writes it."""
        return f"{self.text}; try {' '.join(advice_text(self.action).split())}" if self.action else self.text


def data_warning(kind: str, action: Action | None = None, /, **values: Value) -> DataWarning:
    """A warning of this kind."""
    return DataWarning(kind=kind, values=values, action=action)


# `{labels:q}` quotes the items of a list, `{reasons:;}` separates items that have commas themselves, and `{rows:row}`
# counts: "1 row", "2,000 rows".
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
    "bad-rows": "{rows:malformed row} left out: {reasons:;}",
    "incomplete-rows": "{rows:incomplete row} ({share:.1%}) left out: {reasons:;}; for example {examples:;}",
    "swallowed-rows": "{file}, row {row}: a quote opens here and closes on line {end}; {lines:line} between look like "
    "rows",
    "open-quote": "{file}, row {row}: a quote opens and never closes, so it is read as part of the text {found}",
    "more-quotes": "{rows:more row} with such quotes",
    "lost-letters": "{texts:text} with U+FFFD, which replaces letters lost in an earlier conversion",
    "low-scores": "{rows:pair} with a score below {min_score:g} left out",
    "few-rows": "only {rows:row}, so the results of an evaluation will mean little",
    "nothing-measured": "no rows for validation or test (all {rows} are for training), so nothing will be measured",
    "no-validation": "no rows for validation, so the last step is kept even if an earlier one was better",
    "duplicates": "{rows:duplicate row} (ignoring case and spaces)",
    "conflicting-labels": "{texts:text} with different labels in several rows (such as rows {rows})",
    "leakage": "leakage: {rows:{split} row} with the same {part} as a row of another split",
    "near-copies": "near-duplicates: {rows:{split} row} with nearly the same {part} as a training row (rows {pairs})",
    "overlong": "{share:.1%} of the {role} lengths are over the model's limit of {limit:token} (longest: {longest})",
    # Labels
    "rare-labels": "labels with fewer rows than there are splits ({splits}), so not every split has them: {labels:q}",
    "imbalance": "imbalanced classes: {most_rows:row} of {most!r}, {least_rows:row} of {least!r}; accuracy alone will "
    "be misleading",
    "label-values": "the labels look like {values} ({labels:q}) and are treated as names of classes",
    "similar-labels": "labels that differ only in case or spaces are treated as different: {labels:q}",
    "unseen-labels": "labels in the {split} split that never occur in training: {labels:q}",
    "doubtful-labels": "{rows:row} ({share:.1%}) may have a wrong label: predictions that have not seen it disagree "
    "({examples:;}); {file} lists them, the most doubtful first",
    # Two towers
    "duplicate-vectors": "{queries:query vector} in several rows",
    "ungrouped-vectors": "the file has no array of groups (such as article_ids), so vectors of one article may become "
    "each other's negatives",
    "duplicate-passages": "{passages:passage} with the same text as another one",
    "unused-queries": "{queries:unused query}, without a judgment",
}


class _List(tuple[str, ...]):
    """A list as a sentence shows it: the first items, with the format `q` or `;`."""

    def __format__(self, spec: str) -> str:
        items = [repr(item) if spec == "q" else item for item in self[:_SHOWN]]
        more = f" and {len(self) - _SHOWN:,} more" if len(self) > _SHOWN else ""
        return ("; " if spec == ";" else ", ").join(items) + more


class _Number(int):
    """A number as a sentence shows it: with the noun that is its format, in the singular or plural."""

    def __format__(self, noun: str) -> str:
        number = f"{int(self):,}"
        if not noun:
            return number
        several = noun[:-1] + "ies" if noun.endswith("y") else noun + "s"
        return f"{number} {noun if self == 1 else several}"


def _shown(value: Value) -> Value:
    if isinstance(value, tuple):
        return _List(value)
    return _Number(value) if isinstance(value, int) else value
