"""What a dataset's owner should know before training on it, and what makes training pointless."""

import re
from collections.abc import Iterator, Mapping

from holdfast.core.errors import RequestError
from holdfast.core.facts import Lengths
from holdfast.data import names
from holdfast.data.badrows import BadRows, shortened
from holdfast.data.data_request import DataRequest
from holdfast.data.files import Files
from holdfast.data.label_forms import in_order
from holdfast.data.layout import ColumnLayout
from holdfast.data.profile import MOST_VALUES, ColumnProfile
from holdfast.data.rawfile import open_text, reading
from holdfast.data.read import Source
from holdfast.data.split import SPLITS, repeated
from holdfast.data.tally import Tally

_IMBALANCE = 10
_SHOWN_DOUBTS = 3
FEW_ROWS = 50
_SHOWN = 5
_SHARED_BY = 1.25  # rows with the same value, on average, from which a column groups them
_NUMBER = re.compile(r"-?\d+(\.\d+)?")
_BOOLS = {"true", "false", "yes", "no", "0", "1"}


def check_trainable(layout: ColumnLayout, tally: Tally, files: Files) -> None:
    """Refuse a dataset from which nothing sensible can be learned."""
    train = tally.splits.count(0)
    if not train:
        where = ", ".join(files.splits) or "no split"
        raise RequestError("there are no rows to train on", seen=f"{len(tally):,} rows, all for {where}")
    if layout.task == "classify":
        _check_classes(layout, tally)
    elif len(tally) < 2:
        raise RequestError("one row is too little to train on", seen="1 row that can be used")


def warnings_of(
    layout: ColumnLayout,
    tally: Tally,
    lengths: Mapping[str, Lengths],
    bad: BadRows,
    profiles: Mapping[str, ColumnProfile],
    *,
    is_cut: bool,
) -> Iterator[str]:
    """Say what to look at before training."""
    yield from _unmeasured(tally)
    if len(tally) < FEW_ROWS and any(tally.splits):
        yield f"only {len(tally)} rows: the figures of an evaluation will say little"
    if bad.count:
        reasons = ", ".join(f"{reason} ({count:,})" for reason, count in bad.reasons.most_common(3))
        yield f"bad rows, left out: {reasons}"
    doubts = list(bad.doubts)
    yield from doubts[:_SHOWN_DOUBTS]
    if len(doubts) > _SHOWN_DOUBTS:
        yield f"and {len(doubts) - _SHOWN_DOUBTS:,} more such rows"
    if tally.replaced:
        yield f"U+FFFD, the mark of letters lost in an earlier conversion, stands in {tally.replaced:,} of the texts"
    yield from _repeats(layout, tally)
    if layout.task == "classify":
        yield from _label_warnings(layout, tally)
    if is_cut:
        yield from _groups(layout, profiles)
    for role, one in lengths.items():
        if one.over_limit:
            yield (
                f"{one.over_limit / one.measured:.1%} of the {role}s are over-long: more than the {one.limit:,} tokens "
                f"the model takes (longest {one.longest:,})"
            )


def _unmeasured(tally: Tally) -> Iterator[str]:
    """Say that an evaluation will be missing."""
    if not any(tally.splits):
        yield f"no rows for validation or test (all {len(tally):,} are for training): nothing will be measured"
    elif 1 not in tally.splits:
        yield "no rows for validation: the last step is kept, whether or not it is the best"


def _check_classes(layout: ColumnLayout, tally: Tally) -> None:
    counts = {name: tally.label_counts[number] for name, number in tally.label_numbers.items()}
    column = " + ".join(layout.roles["label"][:3])
    is_multi = layout.labels is not None and layout.labels.is_multi
    if not counts:
        raise RequestError(f"column {column!r} holds no label at all", seen=f"{len(tally):,} rows")
    if len(counts) == 1 and not (is_multi and tally.unlabelled):
        only = next(iter(counts))
        raise RequestError(
            f"every row has the same label, {only!r}, so there is nothing to tell apart",
            seen=f"column {column!r}: {counts[only]:,} rows with one label",
            try_next=("add rows of another class", "--label-column NAME, if the labels stand elsewhere"),
        )
    numbers = [name for name in counts if _NUMBER.fullmatch(name)]
    fractions = [name for name in numbers if "." in name]
    if len(numbers) == len(counts) and len(fractions) > 20:
        raise RequestError(
            f"column {column!r} holds numbers to be predicted, not classes",
            seen=f"{len(counts):,} different values such as {', '.join(fractions[:3])}",
            try_next=("turn the numbers into classes, such as low, middle and high",),
        )
    if max(counts.values()) == 1 or (len(counts) > len(tally) / 2 and len(tally) >= 20) or len(counts) > MOST_VALUES:
        raise RequestError(
            f"almost every row has a label of its own in column {column!r}, so nothing can be learned of any",
            seen=f"{len(counts):,} different labels in {len(tally):,} rows, such as {_listed(list(counts))}",
            try_next=("--label-column NAME, if the labels stand elsewhere", "give several rows for each label"),
        )


def _repeats(layout: ColumnLayout, tally: Tally) -> Iterator[str]:
    """Duplicates, contradictions and examples that are in two splits."""
    same_whole = repeated(tally.wholes)
    if same_whole:
        copies = sum(whole in same_whole for whole in tally.wholes) - len(same_whole)
        yield f"duplicates: {copies:,} of the rows are the same as an earlier one (spaces and capitals aside)"
    if layout.column("group"):
        return  # keys are groups here
    splits_of: dict[int, set[int]] = {}
    labels_of: dict[int, set[tuple[int, ...]]] = {}
    first_row: dict[int, int] = {}
    same_key = repeated(tally.keys)
    if not same_key:
        return
    for at, key in enumerate(tally.keys):
        if key in same_key:
            splits_of.setdefault(key, set()).add(tally.splits[at])
            labels_of.setdefault(key, set()).add(tuple(sorted(tally.labels_of(at))))
            first_row.setdefault(key, tally.rows[at])
    conflicts = [key for key, labels in labels_of.items() if len(labels) > 1]
    if conflicts:
        rows = ", ".join(str(first_row[key]) for key in conflicts[:_SHOWN])
        yield f"conflicting duplicates: {len(conflicts):,} of the texts stand with different labels (row {rows})"
    leaked = {key for key, splits in splits_of.items() if len(splits) > 1}
    if leaked:
        for code in (1, 2):
            count = sum(key in leaked and tally.splits[at] == code for at, key in enumerate(tally.keys))
            if count:
                what = {"classify": "text", "causal": "prompt", "two-tower": "query"}[layout.task]
                yield f"leakage: {count:,} of the {SPLITS[code]} rows share their {what} with a row of another split"


def _label_warnings(layout: ColumnLayout, tally: Tally) -> Iterator[str]:
    counts = {name: tally.label_counts[tally.label_numbers[name]] for name in in_order(tally.label_numbers)}
    once = [name for name, count in counts.items() if count == 1]
    if once:
        yield f"labels with one example only: {_listed(once)}"
    most, least = max(counts, key=counts.__getitem__), min(counts, key=counts.__getitem__)
    if counts[most] >= _IMBALANCE * counts[least]:
        times = counts[most] / counts[least]
        yield (
            f"class imbalance: {most!r} has {counts[most]:,} rows, {least!r} has {counts[least]:,} ({times:.0f} times "
            "fewer); accuracy alone will mislead"
        )
    if all(_NUMBER.fullmatch(name) for name in counts):
        yield f"the labels look like numbers ({_listed(list(counts))}); they are taken as names of classes"
    elif {name.lower() for name in counts} <= _BOOLS:
        yield f"the labels look like yes and no ({_listed(list(counts))}); they are taken as names of classes"
    alike: dict[str, list[str]] = {}
    for name in counts:
        alike.setdefault(" ".join(re.split(r"[\s_\-]+", name.casefold())), []).append(name)
    for same in alike.values():
        if len(same) > 1:
            yield f"labels that differ only in capitals or spaces are taken as different: {_listed(same)}"
    yield from _unseen_labels(tally)


def _unseen_labels(tally: Tally) -> Iterator[str]:
    seen: list[set[int]] = [set() for _ in SPLITS]
    for at in range(len(tally)):
        seen[tally.splits[at]].update(tally.labels_of(at))
    by_number = {number: name for name, number in tally.label_numbers.items()}
    for code in (1, 2):
        if unknown := sorted(by_number[number] for number in seen[code] - seen[0]):
            yield f"labels in {SPLITS[code]} that training never sees: {_listed(unknown)}"


def _groups(layout: ColumnLayout, profiles: Mapping[str, ColumnProfile]) -> Iterator[str]:
    """Name a column whose rows belong together but may be cut apart."""
    if layout.column("group") or layout.task == "two-tower":
        return
    column = names.find(names.GROUP, tuple(profiles))
    if not column or column in layout.used:
        return
    profile = profiles[column]
    if profile.distinct > 1 and profile.repeats >= _SHARED_BY:
        yield f"rows share a {column!r}; --group-column {column} keeps those together where splits are cut"


def _listed(values: list[str]) -> str:
    more = f" and {len(values) - _SHOWN:,} more" if len(values) > _SHOWN else ""
    return ", ".join(repr(value) for value in values[:_SHOWN]) + more


_AS_TEXT = "--task causal, to learn to write text like it"


def check_is_table(request: DataRequest, layout: ColumnLayout, source: Source) -> None:
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


def check_is_corpus(request: DataRequest, layout: ColumnLayout, source: Source, rows: int) -> None:
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
