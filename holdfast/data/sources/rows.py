"""Files of rows as a source: finds the columns, reads every row once, makes the splits."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain, count, islice
from pathlib import Path

from holdfast.core.data_warnings import DataWarning, data_warning
from holdfast.core.errors import RequestError, set_to
from holdfast.core.facts import SPLITS
from holdfast.core.plan import Choice
from holdfast.core.progress import Progress, no_progress
from holdfast.data import names
from holdfast.data.badrows import BadRows, BadValue, describe
from holdfast.data.checks import check_is_corpus, check_is_table, check_trainable, warnings_of
from holdfast.data.csvrows import Row
from holdfast.data.data_request import DataRequest
from holdfast.data.detect import detect
from holdfast.data.examples import reader_for
from holdfast.data.files import Files
from holdfast.data.label_forms import in_order
from holdfast.data.layout import ColumnLayout
from holdfast.data.near_copies import NearCopies
from holdfast.data.profile import ColumnProfile, ColumnProfiles
from holdfast.data.rawfile import RawFile
from holdfast.data.read import RowFile, open_rows
from holdfast.data.sources import Findings, PlacedExample, Sink
from holdfast.data.split import AS_GIVEN, split_off
from holdfast.data.tally import Tally

_REQUIRED = ("text", "label", "prompt", "answer", "messages", "query", "positive")
_EVERY_ROWS = 5000
_PROFILED_ROWS = 50_000  # of a file whose columns are known by their names; labels need every row


@dataclass(frozen=True, slots=True, kw_only=True)
class RowSource:
    """Files of rows whose columns and task are known."""

    request: DataRequest
    layout: ColumnLayout
    columns: tuple[str, ...]
    given: Files
    row_files: tuple[tuple[str, RowFile], ...]  # (split, file) in reading order
    profiles: Mapping[str, ColumnProfile]
    row_count: int | None  # of the training files, where all were read to find the columns

    @property
    def files(self) -> tuple[tuple[str, RawFile], ...]:
        """The files with their splits."""
        return tuple((split, one.raw) for split, one in self.row_files)

    def examples(self, bad: BadRows) -> Iterator[PlacedExample | None]:
        """Every usable row, with None for a pair below the lowest score. Bad rows are noted."""
        read = reader_for(self.layout, self.request.min_score)
        split_column = self.layout.column("split")
        for split, file in self.row_files:
            path = file.path
            for number, row in file.rows(bad):
                try:
                    example = read(row)
                    here = _split_of(row, split_column) if split_column else split
                except BadValue as value:
                    bad.add_value(path, number, value)
                    continue
                yield None if example is None else PlacedExample(here, path, number, example)

    def read(self, sink: Sink | None, bad: BadRows, on_progress: Progress) -> Findings:
        """Read every row once."""
        first = self.row_files[0][1]
        tally, copies, left_out = Tally(), NearCopies(), 0
        codes = {name: code for code, name in enumerate(SPLITS)}
        what = "tokenizing" if sink else "surveying rows"
        whole = self.row_count if len(self.row_files) == 1 else None
        for found in self.examples(bad):
            if found is None:
                left_out += 1
                continue
            tally.add(found.example, codes[found.split], found.row)
            copies.add(found.example.key)
            if sink:
                sink.add(found.example, found.path, found.row)
            if len(tally) % _EVERY_ROWS == 0:
                on_progress(what, len(tally), whole)
        on_progress(what, len(tally), len(tally))
        bad.refuse_many(len(tally) + left_out)
        check_trainable(self.layout, tally, self.given)
        check_is_corpus(self.request, self.layout, first, len(tally))
        if sink:
            tally.drop(sink.end_rows(bad))
        brought = [name for code, name in enumerate(SPLITS) if code in tally.splits]
        chosen = split_off(tally.splits, tally.keys, tally.classes(), brought, self.request)
        labels = {name: tally.label_counts[tally.label_numbers[name]] for name in in_order(tally.label_numbers)}
        if sink:
            sink.finish(tally, tuple(labels))
        choices = {**first.choices, **self.layout.choices}
        if self.given.archive:
            choices["archive"] = Choice(self.given.archive.name, "its files were unpacked into the cache")
        choices.setdefault("splits", _with_neighbors(chosen, self.given, self.row_files))
        # The files of a folder may share a warning; each is listed once.
        warnings = [*self.given.warnings]
        warnings += [one for _, file in self.row_files for one in file.warnings if one not in warnings]
        warnings += self.layout.warnings
        if left_out:
            warnings.append(data_warning("low-scores", rows=left_out, min_score=self.request.min_score or 0.0))
        is_cut = chosen is not AS_GIVEN and "split" not in self.layout.roles
        lengths = {role: one.summary() for role, one in tally.lengths.items()}
        lengths |= sink.lengths() if sink else {}
        warnings += warnings_of(self.layout, tally, copies, lengths, bad, self.profiles, is_cut=is_cut)
        return Findings(
            rows=tally.usable,
            splits={name: tally.splits.count(code) for code, name in enumerate(SPLITS) if code in tally.splits},
            choices=choices,
            labels=labels,
            lengths=lengths,
            histograms={role: one.histogram() for role, one in tally.lengths.items()},
            warnings=tuple(warnings),
        )


def open_row_source(request: DataRequest, files: Files, on_progress: Progress = no_progress) -> RowSource:
    """Open files of rows, and find their columns and task."""
    row_files, unread = _open_all(request, files, on_progress)
    first = row_files[0][1]
    profiles, layout, whole = _detect(request, row_files, on_progress)
    layout = _with_split_column(layout, profiles, files)
    row_files, lacking = _fitting_neighbors(layout, files, row_files)
    _check_columns(layout, row_files)
    check_is_table(request, layout, first)
    _check_scores(request, layout, profiles)
    return RowSource(
        request=request,
        layout=layout,
        columns=tuple(profiles),
        given=replace(files, warnings=(*files.warnings, *unread, *lacking)),
        row_files=row_files,
        profiles=profiles,
        row_count=whole,
    )


def _detect(
    request: DataRequest, row_files: tuple[tuple[str, RowFile], ...], on_progress: Progress
) -> tuple[Mapping[str, ColumnProfile], ColumnLayout, int | None]:
    """What the columns of the training files contain, how they are read, and how many rows there are, if counted.

    Labels are counted in every row, because files are often sorted by label; prompts, answers and pairs are known from
    the first rows of a large file.
    """
    ignored, counter = BadRows(request.max_bad_share), count()
    training = [file for split, file in row_files if split == "train"]
    if any(file.kind == "npz" for file in training):
        raise RequestError(
            "vectors cannot be mixed with rows of text", found=", ".join(one.path.name for one in training)
        )
    found = ColumnProfiles()
    rows = _counted(chain.from_iterable(file.rows(ignored) for file in training), counter, on_progress)
    found.add(islice(rows, _PROFILED_ROWS))
    following = next(rows, None)
    if following:
        layout = detect(request, found.profiles, training[0].repeated)
        if layout.task != "classify" and layout.form not in ("text", "passages of articles"):
            return found.profiles, layout, None
        found.add(chain((following,), rows))
    if not found.profiles:
        raise _no_rows(training[0], ignored)
    return found.profiles, detect(request, found.profiles, training[0].repeated), next(counter)


def _counted(rows: Iterator[Row], counter: Iterator[int], on_progress: Progress) -> Iterator[Row]:
    for row, number in zip(rows, counter, strict=False):
        if number % _EVERY_ROWS == 0:
            on_progress("reading the columns", number, None)
        yield row


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
) -> tuple[tuple[tuple[str, RowFile], ...], list[DataWarning]]:
    """Every file with its split; a neighbor of the training file that cannot be read is left out with a warning."""
    row_files: list[tuple[str, RowFile]] = []
    unread: list[DataWarning] = []
    for split, path in ((split, path) for split, paths in files.splits.items() for path in paths):
        try:
            row_files.append((split, open_rows(path, request, on_progress)))
        except RequestError:
            if split not in files.neighbors:
                raise
            unread.append(_unread(split, path))
    return tuple(row_files), unread


def _fitting_neighbors(
    layout: ColumnLayout, files: Files, row_files: tuple[tuple[str, RowFile], ...]
) -> tuple[tuple[tuple[str, RowFile], ...], list[DataWarning]]:
    """The files without those found next to the training file that lack a column, as a test file without labels."""
    needed = {column for role in _REQUIRED for column in layout.roles.get(role, ())}
    fits = [split not in files.neighbors or needed <= {*file.columns} for split, file in row_files]
    kept = tuple(one for one, is_kept in zip(row_files, fits, strict=True) if is_kept)
    others = (one for one, is_kept in zip(row_files, fits, strict=True) if not is_kept)
    return kept, [_unread(split, one.path) for split, one in others]


def _unread(split: str, path: Path) -> DataWarning:
    return data_warning("unread-split", set_to(split, str(path)), file=path.name, split=split)


def _with_neighbors(chosen: Choice[str], files: Files, row_files: tuple[tuple[str, RowFile], ...]) -> Choice[str]:
    """What was chosen as splits, with the files found next to the training file."""
    found = [f"{split} from {file.path.name}" for split, file in row_files if split in files.neighbors]
    if not found:
        return chosen
    because = f"next to {row_files[0][1].path.name}, named after their splits"
    if chosen is AS_GIVEN:
        return Choice(", ".join(found), because)
    return Choice(", ".join((*found, chosen.value)), f"{because}; the rest is {chosen.because}")


def _check_columns(layout: ColumnLayout, row_files: tuple[tuple[str, RowFile], ...]) -> None:
    """Refuse a validation or test file that lacks a column which training needs."""
    needed = [column for role in _REQUIRED for column in layout.roles.get(role, ())]
    for _, file in row_files:
        if missing := [column for column in needed if column not in file.columns]:
            raise RequestError(
                f"{file.path.name} has no column {missing[0]!r}, which {row_files[0][1].path.name} has",
                found=f"its columns: {', '.join(map(repr, file.columns))}",
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


def _no_rows(file: RowFile, bad: BadRows) -> RequestError:
    if bad.count:
        bad.refuse_many(0)
        return RequestError(f"{file.path.name} has no usable row", found=describe(bad.listed[0]))
    found = f"a header ({', '.join(file.columns)}) and nothing below it" if file.columns else "only empty lines"
    return RequestError(f"{file.path.name} has no rows", found=found, try_next=("add rows to the file",))
