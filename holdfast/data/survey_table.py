"""Surveys files of rows: finds the columns, reads every row once, makes the splits."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain, count
from pathlib import Path
from typing import NamedTuple

from holdfast.core.data_warnings import DataWarning, data_warning
from holdfast.core.errors import RequestError, set_to
from holdfast.core.facts import SPLITS, DatasetFacts
from holdfast.core.plan import Choice
from holdfast.core.progress import Progress, no_progress
from holdfast.data import names
from holdfast.data.badrows import BadRows, BadValue, describe
from holdfast.data.checks import check_is_corpus, check_is_table, check_trainable, warnings_of
from holdfast.data.csvrows import Row
from holdfast.data.data_request import DataRequest
from holdfast.data.detect import detect
from holdfast.data.examples import Example, reader_for
from holdfast.data.files import Files
from holdfast.data.label_forms import in_order
from holdfast.data.layout import ColumnLayout
from holdfast.data.profile import ColumnProfile, profile_columns
from holdfast.data.rawfile import fingerprint_of
from holdfast.data.read import Source, open_source
from holdfast.data.split import AS_GIVEN, split_off
from holdfast.data.tally import Tally
from holdfast.data.tokenizer import ModelTokenizer

_REQUIRED = ("text", "label", "prompt", "answer", "messages", "query", "positive")
_EVERY_ROWS = 5000


class PlacedExample(NamedTuple):
    """An example with its split, file and row."""

    split: str
    path: Path
    row: int
    example: Example


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSurvey:
    """Rows that were read once: their facts, and what is needed to read them again in the same way."""

    request: DataRequest
    facts: DatasetFacts
    layout: ColumnLayout
    sources: tuple[tuple[str, Source], ...]  # (split, file) in reading order
    tally: Tally  # with the split of every example
    labels: tuple[str, ...]  # in the order of their numbers
    bad: BadRows  # the rows that are not used

    def examples(self) -> Iterator["PlacedExample"]:
        """Read the dataset again: every usable example, in the same order."""
        at = 0
        for _, path, row, example in _examples(self.request, self.layout, self.sources, BadRows(1.0)):
            if example is not None:
                yield PlacedExample(SPLITS[self.tally.splits[at]], path, row, example)
                at += 1


def survey_table(
    request: DataRequest, files: Files, tokens: ModelTokenizer | None = None, on_progress: Progress = no_progress
) -> TableSurvey:
    """Survey files of rows."""
    sources, unread = _open_all(request, files, on_progress)
    first = sources[0][1]
    profiles, whole = _profile(request, sources, on_progress)
    layout = _with_split_column(detect(request, profiles, first.repeated), profiles, files)
    sources, lacking = _fitting_neighbors(layout, files, sources)
    files = replace(files, warnings=(*files.warnings, *unread, *lacking))
    _check_columns(layout, sources)
    check_is_table(request, layout, first)
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
    check_is_corpus(request, layout, first, len(tally))
    given = [name for code, name in enumerate(SPLITS) if code in tally.splits]
    chosen = split_off(tally.splits, tally.keys, tally.classes(), given, request)
    is_cut = chosen is not AS_GIVEN and "split" not in layout.roles
    choices = {**first.choices, **layout.choices}
    choices.setdefault("splits", _with_neighbors(chosen, files, sources))
    lengths = {
        role: one.in_tokens(tokens.count, tokens.limit) if tokens else one.summary()
        for role, one in tally.lengths.items()
    }
    # The files of a folder may share a warning; each is listed once.
    warnings = [*files.warnings]
    warnings += [one for _, source in sources for one in source.warnings if one not in warnings]
    warnings += layout.warnings
    if left_out:
        warnings.append(data_warning("low-scores", rows=left_out, min_score=request.min_score or 0.0))
    warnings += warnings_of(layout, tally, lengths, bad, profiles, is_cut=is_cut)
    text, label = layout.roles.get("text") or layout.roles.get("messages"), layout.roles.get("label")
    labels = {name: tally.label_counts[tally.label_numbers[name]] for name in in_order(tally.label_numbers)}
    facts = DatasetFacts(
        task=layout.task,
        form=layout.form,
        rows=len(tally),
        columns=tuple(profiles),
        text_column=" + ".join(text) if text else None,
        label_column=" + ".join(label) if label else None,
        roles=layout.roles,
        labels=labels,
        multi_label=layout.labels is not None and layout.labels.is_multi,
        splits={name: tally.splits.count(code) for code, name in enumerate(SPLITS) if code in tally.splits},
        lengths=lengths,
        warnings=tuple(warnings),
        bad_rows=tuple(bad.listed),
        bad_row_count=bad.count,
        incomplete_row_count=bad.incomplete,
        choices=choices,
        files=tuple(str(source.path) for _, source in sources),
        fingerprint=fingerprint_of((split, source.raw) for split, source in sources),
    )
    return TableSurvey(
        request=request, facts=facts, layout=layout, sources=sources, tally=tally, labels=tuple(facts.labels), bad=bad
    )


def _profile(
    request: DataRequest, sources: tuple[tuple[str, Source], ...], on_progress: Progress
) -> tuple[Mapping[str, ColumnProfile], int]:
    """What the columns of the training files contain, and how many rows there are."""
    ignored, counter = BadRows(request.max_bad_share), count()
    training = [source for split, source in sources if split == "train"]
    if any(source.kind == "npz" for source in training):
        raise RequestError(
            "vectors cannot be mixed with rows of text", found=", ".join(one.path.name for one in training)
        )
    rows = chain.from_iterable(source.rows(ignored) for source in training)
    profiles = profile_columns(_counted(rows, counter, on_progress))
    if not profiles:
        raise _no_rows(training[0], ignored)
    return profiles, next(counter)


def _counted(rows: Iterator[Row], counter: Iterator[int], on_progress: Progress) -> Iterator[Row]:
    for row, number in zip(rows, counter, strict=False):
        if number % _EVERY_ROWS == 0:
            on_progress("reading the columns", number, None)
        yield row


def _examples(
    request: DataRequest, layout: ColumnLayout, sources: tuple[tuple[str, Source], ...], bad: BadRows
) -> Iterator[tuple[str, Path, int, Example | None]]:
    """Every row as (split, file, row, example), with None for a pair below the lowest score. Bad rows are noted."""
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
        raise BadValue(column, value, "unknown-split")
    return split


def _with_split_column(layout: ColumnLayout, profiles: Mapping[str, ColumnProfile], files: Files) -> ColumnLayout:
    """Use a column that says train or test, where one file has all splits."""
    column = names.find(names.SPLIT, tuple(profiles))
    if not column or len(files.splits) > 1 or column in layout.used:
        return layout
    values = {str(value).strip().lower() for value in profiles[column].values}
    found = {names.SPLIT_VALUES.get(value) for value in values}
    if None in found or "train" not in found or len(found) < 2:
        return layout
    choice = Choice(f"column {column}", f"its values are {', '.join(sorted(values))}")
    roles, choices = {**layout.roles, "split": (column,)}, {**layout.choices, "splits": choice}
    return replace(layout, roles=roles, choices=choices)


def _open_all(
    request: DataRequest, files: Files, on_progress: Progress
) -> tuple[tuple[tuple[str, Source], ...], list[DataWarning]]:
    """Every file with its split; a neighbor of the training file that cannot be read is left out with a warning."""
    sources: list[tuple[str, Source]] = []
    unread: list[DataWarning] = []
    for split, path in ((split, path) for split, paths in files.splits.items() for path in paths):
        try:
            sources.append((split, open_source(path, request, on_progress)))
        except RequestError:
            if split not in files.neighbors:
                raise
            unread.append(_unread(split, path))
    return tuple(sources), unread


def _fitting_neighbors(
    layout: ColumnLayout, files: Files, sources: tuple[tuple[str, Source], ...]
) -> tuple[tuple[tuple[str, Source], ...], list[DataWarning]]:
    """The files without those found next to the training file that lack a column, as a test file without labels."""
    needed = {column for role in _REQUIRED for column in layout.roles.get(role, ())}
    fits = [split not in files.neighbors or needed <= {*source.columns} for split, source in sources]
    kept = tuple(one for one, is_kept in zip(sources, fits, strict=True) if is_kept)
    return kept, [_unread(split, one.path) for (split, one), is_kept in zip(sources, fits, strict=True) if not is_kept]


def _unread(split: str, path: Path) -> DataWarning:
    return data_warning("unread-split", set_to(split, str(path)), file=path.name, split=split)


def _with_neighbors(chosen: Choice[str], files: Files, sources: tuple[tuple[str, Source], ...]) -> Choice[str]:
    """What was chosen as splits, with the files found next to the training file."""
    found = [f"{split} from {source.path.name}" for split, source in sources if split in files.neighbors]
    if not found:
        return chosen
    because = f"next to {sources[0][1].path.name}, named after their splits"
    if chosen is AS_GIVEN:
        return Choice(", ".join(found), because)
    return Choice(", ".join((*found, chosen.value)), f"{because}; the rest is {chosen.because}")


def _check_columns(layout: ColumnLayout, sources: tuple[tuple[str, Source], ...]) -> None:
    """Refuse a validation or test file that lacks a column which training needs."""
    needed = [column for role in _REQUIRED for column in layout.roles.get(role, ())]
    for _, source in sources:
        if missing := [column for column in needed if column not in source.columns]:
            raise RequestError(
                f"{source.path.name} has no column {missing[0]!r}, which {sources[0][1].path.name} has",
                found=f"its columns: {', '.join(map(repr, source.columns))}",
                try_next=("use the same columns in all files",),
            )


def _check_scores(request: DataRequest, layout: ColumnLayout, profiles: Mapping[str, ColumnProfile]) -> None:
    column = layout.column("score")
    if not column or request.min_score is not None:
        return
    numbers = sorted(float(str(value)) for value in profiles[column].values)
    upper = numbers[round((len(numbers) - 1) * 0.75)]
    raise RequestError(
        f"the pairs have a {column!r}, and it is unclear from which score on they are positives",
        found=f"scores from {numbers[0]:g} to {numbers[-1]:g}",
        try_next=(set_to("min_score", upper, note="uses the pairs with at least this score"),),
        setting="min_score",
    )


def _no_rows(source: Source, bad: BadRows) -> RequestError:
    if bad.count:
        bad.refuse_many(0)
        return RequestError(f"{source.path.name} has no usable row", found=describe(bad.listed[0]))
    found = f"a header ({', '.join(source.columns)}) and nothing below it" if source.columns else "only empty lines"
    return RequestError(f"{source.path.name} has no rows", found=found, try_next=("add rows to the file",))
