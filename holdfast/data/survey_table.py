"""Surveys a dataset that is rows in files: finds the columns, reads every row once, cuts the splits."""

import hashlib
from array import array
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain, count
from pathlib import Path
from typing import NamedTuple

from holdfast.core.errors import RequestError
from holdfast.core.facts import DatasetFacts
from holdfast.core.plan import Choice
from holdfast.data import names
from holdfast.data.badrows import BadRows, BadValue, describe
from holdfast.data.checks import check_is_corpus, check_is_table, check_trainable, warnings_of
from holdfast.data.csvrows import Row
from holdfast.data.data_request import DataRequest, Progress, no_progress
from holdfast.data.detect import detect
from holdfast.data.examples import Example, reader_for
from holdfast.data.files import Files
from holdfast.data.label_forms import in_order
from holdfast.data.layout import ColumnLayout
from holdfast.data.profile import ColumnProfile, profile_columns
from holdfast.data.read import Source, open_source
from holdfast.data.split import MOST_ROWS, SPLITS, cut
from holdfast.data.tally import Tally
from holdfast.data.tokenizer import ModelTokenizer

_REQUIRED = ("text", "label", "prompt", "answer", "messages", "query", "positive")
_EVERY_ROWS = 5000
_AS_GIVEN = "as given"


class PlacedExample(NamedTuple):
    """An example, the split it is in and where it stands."""

    split: str
    path: Path
    row: int
    example: Example


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSurvey:
    """Rows that were read once: their facts, and what is needed to read them again the same way."""

    request: DataRequest
    facts: DatasetFacts
    layout: ColumnLayout
    sources: tuple[tuple[str, Source], ...]  # (split, file) in reading order
    tally: Tally  # with the split of every example
    labels: tuple[str, ...]  # in the order of their numbers

    def examples(self) -> Iterator["PlacedExample"]:
        """Read the dataset again: every example that can be used, in the same order."""
        at = 0
        for _, path, row, example in _examples(self.request, self.layout, self.sources, BadRows(1.0)):
            if example is not None:
                yield PlacedExample(SPLITS[self.tally.splits[at]], path, row, example)
                at += 1


def survey_table(
    request: DataRequest, files: Files, tokens: ModelTokenizer | None = None, on_progress: Progress = no_progress
) -> TableSurvey:
    """Survey files of rows."""
    sources = tuple(_open_all(request, files, on_progress))
    profiles, whole = _profile(request, sources, on_progress)
    layout = _with_split_column(detect(request, profiles, sources[0][1].repeated), profiles, files)
    _check_columns(layout, sources)
    check_is_table(request, layout, sources[0][1])
    _check_scores(request, layout, profiles)
    bad, tally, left_out = BadRows(request.max_bad_share), Tally(keep_sample=tokens is not None), 0
    for split, _, row, example in _examples(request, layout, sources, bad):
        if example is None:
            left_out += 1
            continue
        tally.add(example, SPLITS.index(split), row)
        if len(tally) % _EVERY_ROWS == 0:
            on_progress("surveying rows", len(tally), whole if len(sources) == 1 else None)
    bad.refuse_many(len(tally) + left_out)
    check_trainable(layout, tally, files)
    check_is_corpus(request, layout, sources[0][1], len(tally))
    chosen = _cut_splits(request, tally)
    facts = _facts(request, layout, sources, tally, bad, files, left_out, chosen, tokens, profiles)
    return TableSurvey(
        request=request,
        facts=facts,
        layout=layout,
        sources=sources,
        tally=tally,
        labels=tuple(facts.labels),
    )


def fingerprint_of(sources: tuple[tuple[str, Source], ...]) -> str:
    """One fingerprint for the contents of all files and the splits they are for."""
    digest = hashlib.sha256()
    for split, source in sources:
        digest.update(f"{split} {source.raw.sha256}\n".encode())
    return digest.hexdigest()


def _open_all(request: DataRequest, files: Files, on_progress: Progress) -> Iterator[tuple[str, Source]]:
    for split, paths in files.splits.items():
        for path in paths:
            yield split, open_source(path, request, on_progress)


def _profile(
    request: DataRequest, sources: tuple[tuple[str, Source], ...], on_progress: Progress
) -> tuple[Mapping[str, ColumnProfile], int]:
    """What the columns of the training files hold, and how many rows there are."""
    ignored, counter = BadRows(request.max_bad_share), count()
    training = [source for split, source in sources if split == "train"]
    if any(source.kind == "npz" for source in training):
        raise RequestError("vectors and rows cannot be mixed", seen=", ".join(one.path.name for one in training))
    rows = chain.from_iterable(source.rows(ignored) for source in training)
    profiles = profile_columns(_counted(rows, counter, on_progress))
    if not profiles:
        raise _no_rows(training[0], ignored)
    return profiles, next(counter)


def _counted(rows: Iterator[Row], counter: Iterator[int], on_progress: Progress) -> Iterator[Row]:
    for row, number in zip(rows, counter, strict=False):
        if number % _EVERY_ROWS == 0:
            on_progress("looking at the columns", number, None)
        yield row


def _examples(
    request: DataRequest, layout: ColumnLayout, sources: tuple[tuple[str, Source], ...], bad: BadRows
) -> Iterator[tuple[str, Path, int, Example | None]]:
    """Every row as (split, file, row, example); None for a pair below the lowest score. Bad rows are noted."""
    read = reader_for(layout, request.min_score)
    split_column = layout.column("split")
    for split, source in sources:
        for number, row in source.rows(bad):
            try:
                example = read(row)
                yield _split_of(row, split_column) if split_column else split, source.path, number, example
            except BadValue as value:
                bad.add_value(source.path, number, value)


def _split_of(row: Mapping[str, object], column: str) -> str:
    value = row.get(column)
    split = names.SPLIT_VALUES.get(str(value).strip().lower())
    if split is None:
        raise BadValue(column, value, "a split is wanted: train, validation or test")
    return split


def _with_split_column(layout: ColumnLayout, profiles: Mapping[str, ColumnProfile], files: Files) -> ColumnLayout:
    """Use a column that says train or test, where one file holds all."""
    column = names.find(names.SPLIT, tuple(profiles))
    if not column or len(files.splits) > 1 or column in layout.used:
        return layout
    values = {str(value).strip().lower() for value in profiles[column].values}
    found = {names.SPLIT_VALUES.get(value) for value in values}
    if None in found or "train" not in found or len(found) < 2:
        return layout
    return ColumnLayout(
        task=layout.task,
        form=layout.form,
        roles={**layout.roles, "split": (column,)},
        choices={**layout.choices, "splits": Choice(f"column {column}", f"it holds {', '.join(sorted(values))}")},
        labels=layout.labels,
        warnings=layout.warnings,
    )


def _cut_splits(request: DataRequest, tally: Tally) -> Choice[str]:
    """Cut the splits that were not given from the training rows; says what was done."""
    has = [code in tally.splits for code in range(len(SPLITS))]
    shares: dict[str, float] = {}
    if not has[1]:
        shares["validation"] = request.validation_share
    if not has[1] and not has[2]:
        shares["test"] = request.test_share
    shares = {name: share for name, share in shares.items() if share > 0}
    if not shares:
        return Choice(_AS_GIVEN, "the data says which rows are for what")
    training = array("q", (row for row in range(len(tally)) if tally.splits[row] == 0))
    classes = tally.classes()
    keys = array("Q", (tally.keys[row] for row in training))
    codes = cut(keys, array("i", (classes[row] for row in training)), shares, request.seed)
    for row, code in zip(training, codes, strict=True):
        tally.splits[row] = code
    cutting = " and ".join(f"{share:.0%} for {name}" for name, share in shares.items())
    capped = f", at most {MOST_ROWS:,} each" if len(training) * max(shares.values()) > MOST_ROWS else ""
    return Choice(
        f"{cutting}{capped}",
        f"not given, so cut by content and seed {request.seed}"
        + (", labels in their shares" if tally.label_counts else ""),
    )


def _facts(
    request: DataRequest,
    layout: ColumnLayout,
    sources: tuple[tuple[str, Source], ...],
    tally: Tally,
    bad: BadRows,
    files: Files,
    left_out: int,
    chosen: Choice[str],
    tokens: ModelTokenizer | None,
    profiles: Mapping[str, ColumnProfile],
) -> DatasetFacts:
    label_names = in_order(tally.label_numbers)
    lengths = {role: measured.summary() for role, measured in tally.lengths.items()}
    if tokens:
        lengths = {role: one.in_tokens(tokens.count, tokens.limit) for role, one in tally.lengths.items()}
    choices: dict[str, Choice[str]] = {**sources[0][1].choices, **layout.choices}
    choices.setdefault("splits", chosen)
    warnings = [*files.warnings]
    for _, source in sources:
        warnings += [warning for warning in source.warnings if warning not in warnings]
    warnings += layout.warnings
    if left_out:
        warnings.append(f"{left_out:,} pairs with a score below {request.min_score:g} are left out")
    is_cut = choices["splits"] is chosen and chosen.value != _AS_GIVEN
    warnings += warnings_of(layout, tally, lengths, bad, profiles, is_cut=is_cut)
    text = layout.roles.get("text") or layout.roles.get("messages")
    label = layout.roles.get("label", ())
    return DatasetFacts(
        task=layout.task,
        form=layout.form,
        rows=len(tally),
        columns=tuple(profiles),
        text_column=" + ".join(text) if text else None,
        label_column=" + ".join(label) if label else None,
        roles=layout.roles,
        labels={name: tally.label_counts[tally.label_numbers[name]] for name in label_names},
        multi_label=layout.labels is not None and layout.labels.is_multi,
        splits={name: tally.splits.count(code) for code, name in enumerate(SPLITS) if code in tally.splits},
        lengths=lengths,
        warnings=tuple(warnings),
        bad_rows=tuple(bad.listed),
        bad_row_count=bad.count,
        choices=choices,
        files=tuple(str(source.path) for _, source in sources),
        fingerprint=fingerprint_of(sources),
    )


def _check_columns(layout: ColumnLayout, sources: tuple[tuple[str, Source], ...]) -> None:
    """Refuse a validation or test file that lacks a column which training needs."""
    needed = [column for role in _REQUIRED for column in layout.roles.get(role, ())]
    for _, source in sources:
        if missing := [column for column in needed if column not in source.columns]:
            raise RequestError(
                f"{source.path.name} has no column {missing[0]!r}, which {sources[0][1].path.name} has",
                seen=f"its columns: {', '.join(map(repr, source.columns))}",
                try_next=("give all files the same columns",),
            )


def _check_scores(request: DataRequest, layout: ColumnLayout, profiles: Mapping[str, ColumnProfile]) -> None:
    column = layout.column("score")
    if not column or request.min_score is not None:
        return
    numbers = sorted(float(str(value)) for value in profiles[column].values)
    raise RequestError(
        f"the pairs carry a {column!r}, and nothing says from which one on they belong together",
        seen=f"scores from {numbers[0]:g} to {numbers[-1]:g}",
        try_next=(f"--min-score {numbers[round((len(numbers) - 1) * 0.75)]:g} takes the pairs from there on",),
    )


def _no_rows(source: Source, bad: BadRows) -> RequestError:
    if bad.count:
        bad.refuse_many(0)
        return RequestError(f"{source.path.name} has no row that can be used", seen=describe(bad.listed[0]))
    seen = f"a header ({', '.join(source.columns)}) and nothing below it" if source.columns else "empty lines only"
    return RequestError(f"{source.path.name} has no rows", seen=seen, try_next=("add rows to the file",))
