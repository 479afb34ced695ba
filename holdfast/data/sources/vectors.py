"""NPZ files of precomputed vectors as a source: row i of the queries belongs to row i of the passages.

Arrays are read in slices from inside the archive, never as a whole. An array of Python objects is refused: it is a
pickle, and loading one can run arbitrary code.
"""

import hashlib
import zipfile
import zlib
from array import array
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.core.data_warnings import DataWarning, data_warning
from holdfast.core.errors import RequestError, install, set_to, type_command
from holdfast.core.facts import SPLITS
from holdfast.core.plan import Choice
from holdfast.core.progress import Progress, no_progress
from holdfast.data import names
from holdfast.data.badrows import BadRows
from holdfast.data.data_request import DataRequest
from holdfast.data.examples import content_hash
from holdfast.data.files import Files
from holdfast.data.layout import ColumnLayout
from holdfast.data.rawfile import RawFile, look_at, reading
from holdfast.data.sources import Findings, Sink
from holdfast.data.split import repeated, split_off

if TYPE_CHECKING:
    from numpy.typing import NDArray

_SLICE_ROWS = 4096
_QUERY = ("queries", "query", "query_vectors", "query_embeddings", "anchors", "anchor", "anchor_embeddings", "x", "q")
_PASSAGE = (
    "passages", "passage", "passage_vectors", "passage_embeddings", "documents", "document_embeddings", "positives",
    "positive", "positive_embeddings", "targets", "y", "p",
)  # fmt: skip
_GROUP = ("groups", "group", "group_ids", "article_ids", "article_id", "article", "doc_ids", *names.GROUP)


@dataclass(frozen=True, slots=True, kw_only=True)
class VectorArray:
    """One array inside the archive."""

    name: str
    shape: tuple[int, ...]
    kind: str  # numpy's letter: "f", "i", "U", ...


@dataclass(frozen=True, slots=True, kw_only=True)
class VectorFile:
    """One file of pairs."""

    split: str
    raw: RawFile
    arrays: tuple[VectorArray, ...]
    queries: VectorArray
    passages: VectorArray
    because: str  # why these two arrays are the pairs
    start: int  # the number of its first row among the rows of all files

    @property
    def rows(self) -> int:
        """The number of pairs."""
        return self.queries.shape[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class VectorRows:
    """What is known of every row. Rows are numbered through all files, those for training first."""

    groups: "array[int]"  # of each row, 0 for none; empty if no file has groups
    usable: bytearray  # 1 for usable rows
    splits: bytearray  # the split of each row


@dataclass(frozen=True, slots=True, kw_only=True)
class VectorSource:
    """Files of vectors: `check` reads them once and says which rows can be used."""

    request: DataRequest
    layout: ColumnLayout
    given: Files
    opened: tuple[VectorFile, ...]

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of all arrays."""
        return tuple(dict.fromkeys(one.name for file in self.opened for one in file.arrays))

    @property
    def files(self) -> tuple[tuple[str, RawFile], ...]:
        """The files with their splits."""
        return tuple((file.split, file.raw) for file in self.opened)

    def read(self, sink: Sink | None, bad: BadRows, on_progress: Progress) -> Findings:
        """Read every vector once; there are no texts, so a sink gets nothing."""
        return self.check(bad, on_progress)[0]

    def check(self, bad: BadRows, on_progress: Progress) -> tuple[Findings, VectorRows]:
        """Read every vector once, note unusable rows and make the splits."""
        count = sum(file.rows for file in self.opened)
        usable = bytearray(b"\1" * count)
        contents = array("Q", bytes(8 * count))
        splits = bytearray(SPLITS.index(file.split) for file in self.opened for _ in range(file.rows))
        for file in self.opened:
            for one in (file.queries, file.passages):
                for at, rows in slices(file.raw.path, one.name):
                    _check_rows(file, one.name, at, rows, usable, bad)
                    for offset, row in enumerate(rows) if one is file.queries else ():
                        digest = hashlib.blake2b(row.tobytes(), digest_size=8).digest()
                        contents[file.start + at + offset] = int.from_bytes(digest, "little")
                    on_progress(f"reading the array {one.name}", at + len(rows), one.shape[0])
        bad.refuse_many(sum(usable))
        groups = array("Q")
        if any(_group_array(file) for file in self.opened):
            groups = array("Q", (group for file in self.opened for group in _read_groups(file)))
        chosen = split_off(splits, groups or contents, [0] * count, [file.split for file in self.opened], self.request)
        counts = {
            name: sum(keep and split == code for keep, split in zip(usable, splits, strict=True))
            for code, name in enumerate(SPLITS)
        }
        if self.given.neighbors:
            because = f"from the files next to {self.request.path.name}, named after their splits"
            chosen = Choice(", ".join(self.given.neighbors), because)
        findings = Findings(
            rows=sum(usable),
            splits={name: rows for name, rows in counts.items() if rows or name == "train"},
            choices={**self.layout.choices, "splits": chosen},
            warnings=(*self.given.warnings, *_warnings(contents, splits, bad, groups)),
        )
        return findings, VectorRows(groups=groups, usable=usable, splits=splits)

    def queries(self) -> Iterator[tuple[int, "NDArray[Any]"]]:
        """The query vectors in slices: (number of the first row, vectors)."""
        return self._slices((file, file.queries) for file in self.opened)

    def passages(self) -> Iterator[tuple[int, "NDArray[Any]"]]:
        """The passage vectors in slices: (number of the first row, vectors)."""
        return self._slices((file, file.passages) for file in self.opened)

    def row_in_file(self, row: int) -> int:
        """The number of a row in its own file, counted from 1."""
        return row - max(file.start for file in self.opened if file.start <= row) + 1

    def _slices(self, arrays: Iterable[tuple[VectorFile, VectorArray]]) -> Iterator[tuple[int, "NDArray[Any]"]]:
        for file, one in arrays:
            for at, rows in slices(file.raw.path, one.name):
                yield file.start + at, rows


def open_vector_source(request: DataRequest, files: Files, on_progress: Progress = no_progress) -> VectorSource:
    """Open files of vectors."""
    opened = tuple(_open_all(request, files, on_progress))
    first = opened[0]
    choices = {
        "format": Choice("NumPy vectors (NPZ)", "its first bytes"),
        "task": Choice("two-tower", "pairs of vectors"),
        "query": Choice(f"{first.queries.name}, {first.queries.shape[1]} numbers each", first.because),
        "passage": Choice(f"{first.passages.name}, {first.passages.shape[1]} numbers each", first.because),
    }
    roles = {"query": (first.queries.name,), "passage": (first.passages.name,)}
    layout = ColumnLayout(task="two-tower", form="vectors", roles=roles, choices=choices)
    return VectorSource(request=request, layout=layout, given=files, opened=opened)


def list_arrays(path: Path) -> list[VectorArray]:
    """The arrays of an NPZ file, without reading them."""
    numpy = _numpy()
    found = []
    with _opened(path) as archive:
        for entry in archive.namelist():
            with archive.open(entry) as file:
                shape, _, dtype = _header(numpy, file, path, entry)
            if dtype.hasobject:
                raise RequestError(
                    f"the array {entry.removesuffix('.npy')!r} in {path.name} contains Python objects",
                    found="loading those can run arbitrary code, so Holdfast never does",
                    try_next=("save it as numbers or text: numpy.asarray(values, dtype=...)",),
                )
            found.append(VectorArray(name=entry.removesuffix(".npy"), shape=shape, kind=dtype.kind))
    return found


def slices(path: Path, name: str) -> Iterator[tuple[int, "NDArray[Any]"]]:
    """Read the rows of an array in slices: (first row, rows as float32)."""
    numpy = _numpy()
    with _opened(path) as archive, archive.open(f"{name}.npy") as file:
        shape, is_fortran, dtype = _header(numpy, file, path, name)
        if is_fortran:
            raise RequestError(
                f"the array {name!r} in {path.name} is stored column by column",
                try_next=("save it with numpy.ascontiguousarray(array)",),
            )
        row_bytes = dtype.itemsize * shape[1]
        for at in range(0, shape[0], _SLICE_ROWS):
            count = min(_SLICE_ROWS, shape[0] - at)
            held = file.read(count * row_bytes)
            if len(held) < count * row_bytes:
                raise RequestError(f"the array {name!r} in {path.name} is truncated", found=f"it ends at row {at:,}")
            yield at, numpy.frombuffer(held, dtype=dtype).reshape(count, shape[1]).astype(numpy.float32)


def _open_all(request: DataRequest, files: Files, on_progress: Progress) -> Iterator[VectorFile]:
    """Open every file of every split, those for training first; all must have vectors of the same sizes."""
    start, sizes = 0, None
    for split in SPLITS:
        for path in files.splits.get(split, ()):
            if request.task not in (None, "two-tower"):
                raise RequestError(
                    f"{path.name} has vectors, which can train two-tower but not {request.task}",
                    try_next=(set_to("task", "two-tower"),),
                    setting="task",
                )
            raw = look_at(path, None, on_progress)
            if raw.binary != "npz":
                raise RequestError("vectors cannot be mixed with rows of text", found=f"{path.name} is not an NPZ file")
            if raw.is_gzip:
                raise RequestError(
                    f"{path.name} is a gzipped NPZ file, which cannot be read in slices",
                    try_next=(type_command(f"gunzip {path}"),),
                )
            arrays = list_arrays(path)
            queries, passages, because = _find_pair(path, arrays)
            found = queries.shape[1], passages.shape[1]
            if sizes not in (None, found):
                raise RequestError(
                    f"the vectors in {path.name} have other sizes than those for training",
                    found=f"queries and passages of {found[0]} and {found[1]} numbers, not {sizes[0]} and {sizes[1]}",
                )
            sizes = found
            yield VectorFile(
                split=split,
                raw=raw,
                arrays=tuple(arrays),
                queries=queries,
                passages=passages,
                because=because,
                start=start,
            )
            start += queries.shape[0]


def _find_pair(path: Path, arrays: list[VectorArray]) -> tuple[VectorArray, VectorArray, str]:
    tables = [one for one in arrays if len(one.shape) == 2 and one.kind == "f"]
    by_name = {one.name: one for one in tables}
    query, passage = names.find(_QUERY, tuple(by_name)), names.find(_PASSAGE, tuple(by_name))
    held = ", ".join(f"{one.name} {'x'.join(map(str, one.shape))}" for one in arrays)
    if query and passage:
        pair, because = (by_name[query], by_name[passage]), "by name"
    elif len(tables) == 2:
        pair, because = (tables[0], tables[1]), "the only two arrays of vectors, in their order"
    else:
        raise RequestError(
            f"found no pair of queries and passages in {path.name}",
            found=held or "no arrays",
            try_next=("numpy.savez(FILE, queries=..., passages=...), both with one row of numbers for each pair",),
        )
    if pair[0].shape[0] != pair[1].shape[0]:
        raise RequestError(
            f"{path.name} has different numbers of queries and passages, so they are not pairs",
            found=held,
            try_next=("save the passage of query i as row i of the passages",),
        )
    if pair[0].shape[0] < 2 or not pair[0].shape[1] or not pair[1].shape[1]:
        raise RequestError(f"{path.name} has too few vectors to train on", found=held)
    return *pair, because


def _check_rows(file: VectorFile, name: str, at: int, rows: "NDArray[Any]", usable: bytearray, bad: BadRows) -> None:
    numpy = _numpy()
    finite = numpy.isfinite(rows).all(axis=1)
    nonzero = rows.any(axis=1)
    for offset in numpy.flatnonzero(~(finite & nonzero)).tolist():
        if usable[file.start + at + offset]:
            usable[file.start + at + offset] = 0
            kind = "zero-vector" if finite[offset] else "not-finite"
            bad.add(file.raw.path, at + offset + 1, kind, column=name)


def _group_array(file: VectorFile) -> VectorArray | None:
    name = names.find(_GROUP, tuple(one.name for one in file.arrays))
    return next((one for one in file.arrays if one.name == name and one.shape == (file.rows,)), None)


def _read_groups(file: VectorFile) -> Iterator[int]:
    """The group of each row; 0 where the file has none."""
    found = _group_array(file)
    if not found:
        yield from [0] * file.rows
        return
    with reading(file.raw.path), _numpy().load(file.raw.path, allow_pickle=False) as archive:
        yield from (content_hash(str(value)) for value in archive[found.name].tolist())


def _warnings(contents: "array[int]", splits: bytearray, bad: BadRows, groups: "array[int]") -> Iterator[DataWarning]:
    yield from bad.warnings()
    if copies := len(repeated(contents)):
        yield data_warning("duplicate-vectors", queries=copies)
    seen: list[set[int]] = [set() for _ in SPLITS]
    for content, split in zip(contents, splits, strict=True):
        seen[split].add(content)
    for code in (1, 2):
        if shared := len(seen[0] & seen[code]):
            yield data_warning("leakage", rows=shared, split=SPLITS[code], part="query")
    if not groups:
        yield data_warning("ungrouped-vectors")


@contextmanager
def _opened(path: Path) -> Iterator[zipfile.ZipFile]:
    """The archive; whatever is wrong with it or with an array in it becomes a RequestError."""
    try:
        with reading(path), zipfile.ZipFile(path) as archive:
            yield archive
    except (zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError) as error:  # RuntimeError: encrypted
        raise RequestError(
            f"{path.name} is damaged: it cannot be read as NPZ", found=str(error), try_next=("copy or create it again",)
        ) from error


def _header(numpy: Any, file: Any, path: Path, name: str) -> tuple[tuple[int, ...], bool, Any]:
    read: Mapping[tuple[int, int], Any] = {
        (1, 0): numpy.lib.format.read_array_header_1_0,
        (2, 0): numpy.lib.format.read_array_header_2_0,
    }
    try:
        version = numpy.lib.format.read_magic(file)
        shape, is_fortran, dtype = read[version](file)
    except (ValueError, KeyError, EOFError, zipfile.BadZipFile, OSError) as error:
        raise RequestError(f"cannot read the array {name!r} in {path.name}", found=str(error)[:200]) from error
    return shape, is_fortran, dtype


def _numpy() -> Any:
    try:
        import numpy
    except ImportError as error:
        raise RequestError(
            "files of vectors need an extra that is not installed", found=str(error), try_next=(install("train"),)
        ) from error
    return numpy
