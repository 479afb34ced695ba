"""What the owner of a dataset should know before training on it, and what makes training pointless."""

import re
from collections.abc import Iterator, Mapping

from holdfast.core.data_warnings import DataWarning, data_warning
from holdfast.core.errors import RequestError, set_to
from holdfast.core.facts import SPLITS, Lengths
from holdfast.core.text import plural
from holdfast.data import names
from holdfast.data.badrows import BadRows, shortened
from holdfast.data.data_request import DataRequest
from holdfast.data.detect import AS_TEXT
from holdfast.data.files import Files
from holdfast.data.label_forms import in_order
from holdfast.data.layout import ColumnLayout
from holdfast.data.near_copies import NearCopies
from holdfast.data.profile import MOST_VALUES, ColumnProfile
from holdfast.data.rawfile import open_text, reading
from holdfast.data.read import RowFile
from holdfast.data.split import repeated
from holdfast.data.tally import Tally

FEW_ROWS = 50
_IMBALANCE = 10
_SHOWN = 5
_SHARED_BY = 1.25  # rows with the same value, on average, from which a column groups them
_PARTS = {"classify": "text", "causal": "prompt", "two-tower": "query"}  # what examples of one split share
_NUMBER = re.compile(r"-?\d+(\.\d+)?")
_BOOLS = {"true", "false", "yes", "no", "0", "1"}


def check_trainable(layout: ColumnLayout, tally: Tally, files: Files) -> None:
    """Refuse a dataset from which nothing sensible can be learned."""
    train = tally.splits.count(0)
    if not train:
        where = ", ".join(files.splits) or "no split"
        raise RequestError("there are no rows to train on", found=f"{len(tally):,} rows, all for {where}")
    if layout.task == "classify":
        _check_classes(layout, tally)
    elif len(tally) < 2:
        raise RequestError("one row is not enough to train on", found="1 usable row")


def check_is_table(request: DataRequest, layout: ColumnLayout, source: RowFile) -> None:
    """Refuse lines that are not a table, such as a program or a log, unless they were requested as text."""
    dialect = source.dialect
    is_requested = request.task or request.text_columns or request.delimiter or request.header is not None
    if dialect is None or is_requested or layout.form != "text" or names.find(names.TEXT, source.columns):
        return
    if dialect.has_header.value and dialect.cuts:
        return
    with open_text(source.raw) as file, reading(source.path):
        first = next((line.strip() for line in file if line.strip()), "")
    misnamed = [warning.text for warning in source.warnings if warning.kind == "misnamed"]
    why = "no header" if dialect.cuts else "no delimiter that splits its lines evenly"
    raise RequestError(
        f"{source.path.name} is not a table with columns to learn from",
        found="; ".join([*misnamed, why, f"the file begins with {shortened(first)}"]),
        try_next=(
            "add a first row that names the columns, such as text and label, or instruction and output",
            AS_TEXT,
        ),
        setting="task",
    )


def check_is_corpus(request: DataRequest, layout: ColumnLayout, source: RowFile, rows: int) -> None:
    """Refuse a table with a few rows of text and nothing else, unless it was requested as text."""
    is_requested = request.task or request.text_columns
    if rows >= FEW_ROWS or layout.form != "text" or source.kind == "text" or is_requested:
        return
    text = layout.roles["text"][0]
    raise RequestError(
        f"found only text in {plural(rows, 'row')}, too few for a language model and nothing else to learn",
        found=f"text in column {text!r}; columns: {', '.join(map(repr, source.columns))}",
        try_next=("add a column of labels or answers", set_to("label_column", note="if there is one"), AS_TEXT),
        setting="label_column",
    )


def warnings_of(
    layout: ColumnLayout,
    tally: Tally,
    copies: NearCopies,
    lengths: Mapping[str, Lengths],
    bad: BadRows,
    profiles: Mapping[str, ColumnProfile],
    *,
    is_cut: bool,
) -> Iterator[DataWarning]:
    """What to check before training."""
    if not any(tally.splits):
        yield data_warning("nothing-measured", rows=len(tally))
    elif 1 not in tally.splits:
        yield data_warning("no-validation")
    if len(tally) < FEW_ROWS and any(tally.splits):
        yield data_warning("few-rows", rows=len(tally))
    yield from bad.warnings()
    if tally.replaced:
        yield data_warning("lost-letters", texts=tally.replaced)
    yield from _repeats(layout, tally)
    yield from _near_copies(layout, tally, copies)
    if layout.task == "classify":
        yield from _label_warnings(tally)
    if is_cut:
        yield from _groups(layout, profiles)
    for role, one in lengths.items():
        if one.over_limit:
            share = one.over_limit / one.measured
            yield data_warning("overlong", share=share, role=role, limit=one.limit or 0, longest=one.longest)


def _check_classes(layout: ColumnLayout, tally: Tally) -> None:
    counts = {name: tally.label_counts[number] for name, number in tally.label_numbers.items()}
    column = " + ".join(layout.roles["label"][:3])
    is_multi = layout.labels is not None and layout.labels.is_multi
    other_column = set_to("label_column", note="if the labels are in another column")
    if not counts:
        raise RequestError(f"column {column!r} has no labels", found=f"{len(tally):,} rows", setting="label_column")
    if len(counts) == 1 and not (is_multi and tally.unlabeled):
        only = next(iter(counts))
        raise RequestError(
            f"every row has the same label {only!r}, so there is nothing to learn",
            found=f"column {column!r}: {counts[only]:,} rows with one label",
            try_next=("add rows of another class", other_column),
            setting="label_column",
        )
    numbers = [name for name in counts if _NUMBER.fullmatch(name)]
    fractions = [name for name in numbers if "." in name]
    if len(numbers) == len(counts) and len(fractions) > 20:
        raise RequestError(
            f"column {column!r} has numbers to predict, not classes",
            found=f"{len(counts):,} different values such as {', '.join(fractions[:3])}",
            try_next=("turn the numbers into classes, such as low, medium and high",),
            setting="label_column",
        )
    if max(counts.values()) == 1 or (len(counts) > len(tally) / 2 and len(tally) >= 20) or len(counts) > MOST_VALUES:
        such = ", ".join(map(repr, list(counts)[:_SHOWN]))
        raise RequestError(
            f"almost every row in column {column!r} has a different label, so there is nothing to learn",
            found=f"{len(counts):,} different labels in {len(tally):,} rows, such as {such}",
            try_next=(other_column, "add more rows for each label"),
            setting="label_column",
        )


def _repeats(layout: ColumnLayout, tally: Tally) -> Iterator[DataWarning]:
    """Duplicates, contradictions and examples that are in two splits."""
    same_whole = repeated(tally.wholes)
    if same_whole:
        copies = sum(whole in same_whole for whole in tally.wholes) - len(same_whole)
        yield data_warning("duplicates", rows=copies)
    if layout.column("group"):
        return  # keys are groups here
    splits_of: dict[int, set[int]] = {}
    labels_of: dict[int, set[tuple[int, ...]]] = {}
    first_row: dict[int, int] = {}
    same_key = repeated(tally.keys)
    for at, key in enumerate(tally.keys if same_key else ()):
        if key in same_key:
            splits_of.setdefault(key, set()).add(tally.splits[at])
            labels_of.setdefault(key, set()).add(tuple(sorted(tally.labels_of(at))))
            first_row.setdefault(key, tally.rows[at])
    conflicts = [key for key, labels in labels_of.items() if len(labels) > 1]
    if conflicts:
        rows = tuple(str(first_row[key]) for key in conflicts)
        yield data_warning("conflicting-labels", texts=len(conflicts), rows=rows)
    leaked = {key for key, splits in splits_of.items() if len(splits) > 1}
    for code in (1, 2) if leaked else ():
        if count := sum(key in leaked and tally.splits[at] == code for at, key in enumerate(tally.keys)):
            yield data_warning("leakage", rows=count, split=SPLITS[code], part=_PARTS[layout.task])


def _near_copies(layout: ColumnLayout, tally: Tally, copies: NearCopies) -> Iterator[DataWarning]:
    """Rows of validation and test whose text is nearly that of a training row."""
    found = copies.across(tally.splits, tally.keys)
    for code in (1, 2):
        here = [copy for copy in found if tally.splits[copy.held] == code]
        if here:
            pairs = tuple(f"{tally.rows[copy.held]} and {tally.rows[copy.trained]}" for copy in here)
            yield data_warning("near-copies", rows=len(here), split=SPLITS[code], part=_PARTS[layout.task], pairs=pairs)


def _label_warnings(tally: Tally) -> Iterator[DataWarning]:
    counts = {name: tally.label_counts[tally.label_numbers[name]] for name in in_order(tally.label_numbers)}
    splits = sum(code in tally.splits for code in range(len(SPLITS)))
    if rare := tuple(name for name, count in counts.items() if count < splits):
        yield data_warning("rare-labels", labels=rare, splits=splits)
    most, least = max(counts, key=counts.__getitem__), min(counts, key=counts.__getitem__)
    if counts[most] >= _IMBALANCE * counts[least]:
        rows = {"most_rows": counts[most], "least_rows": counts[least]}
        yield data_warning("imbalance", most=most, least=least, **rows)
    if all(_NUMBER.fullmatch(name) for name in counts):
        yield data_warning("label-values", values="numbers", labels=tuple(counts))
    elif {name.lower() for name in counts} <= _BOOLS:
        yield data_warning("label-values", values="yes and no", labels=tuple(counts))
    alike: dict[str, list[str]] = {}
    for name in counts:
        alike.setdefault(" ".join(re.split(r"[\s_\-]+", name.casefold())), []).append(name)
    for same in alike.values():
        if len(same) > 1:
            yield data_warning("similar-labels", labels=tuple(same))
    seen: list[set[int]] = [set() for _ in SPLITS]
    for at in range(len(tally)):
        seen[tally.splits[at]].update(tally.labels_of(at))
    by_number = {number: name for name, number in tally.label_numbers.items()}
    for code in (1, 2):
        if unseen := tuple(sorted(by_number[number] for number in seen[code] - seen[0])):
            yield data_warning("unseen-labels", split=SPLITS[code], labels=unseen)


def _groups(layout: ColumnLayout, profiles: Mapping[str, ColumnProfile]) -> Iterator[DataWarning]:
    """Name a column whose rows belong together but may be put in different splits."""
    if layout.column("group") or layout.task == "two-tower":
        return
    column = names.find(names.GROUP, tuple(profiles))
    if not column or column in layout.used:
        return
    profile = profiles[column]
    if profile.distinct > 1 and profile.repeats >= _SHARED_BY:
        keep = set_to("group_column", column, note="keeps them together")
        yield data_warning("related-rows", keep, column=column)
