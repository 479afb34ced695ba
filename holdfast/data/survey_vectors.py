"""Surveys an NPZ file of precomputed vectors: row i of the queries belongs to row i of the passages.

Arrays are read in slices from inside the archive, never whole. An array of Python objects is refused: it is a pickle.
"""

import hashlib
import zipfile
from array import array
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.core.errors import RequestError
from holdfast.core.facts import DatasetFacts
from holdfast.core.plan import Choice
from holdfast.data import names
from holdfast.data.badrows import BadRows
from holdfast.data.data_request import DataRequest, Progress, no_progress
from holdfast.data.examples import content_hash
from holdfast.data.files import Files
from holdfast.data.rawfile import look_at, reading
from holdfast.data.split import SPLITS, cut, repeated

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
class VectorSurvey:
    """A file of vectors that was read once."""

    request: DataRequest
    facts: DatasetFacts
    path: Path
    queries: str  # names of the arrays
    passages: str
    groups: "array[int]"  # of each row; empty where the file has none
    usable: bytearray  # 1 for rows that can be used
    splits: bytearray  # the split of each row


def survey_vectors(request: DataRequest, files: Files, on_progress: Progress = no_progress) -> VectorSurvey:
    """Survey a file of vectors."""
    path = files.splits["train"][0]
    if request.task not in (None, "two-tower"):
        raise RequestError(
            f"{path.name} holds vectors, which train two-tower, not {request.task}",
            try_next=(f"holdfast survey {path} --task two-tower",),
        )
    raw = look_at(path, None, on_progress)
    if raw.is_gzip:
        raise RequestError(f"{path.name} is an NPZ file that was gzipped", try_next=(f"gunzip {path}",))
    members = list_members(path)
    queries, passages, because = _find_pair(path, members)
    bad = BadRows(request.max_bad_share)
    usable = bytearray(b"\1" * queries.shape[0])
    contents = array("Q", bytes(8 * queries.shape[0]))
    for member in (queries, passages):
        for at, rows in slices(path, member.name):
            _check_rows(path, member.name, at, rows, usable, bad)
            if member is queries:
                for offset, row in enumerate(rows):
                    digest = hashlib.blake2b(row.tobytes(), digest_size=8).digest()
                    contents[at + offset] = int.from_bytes(digest, "little")
            on_progress(f"looking at {member.name}", at + len(rows), member.shape[0])
    bad.refuse_many(sum(usable))
    groups = _read_groups(path, members, queries.shape[0])
    shares = {"validation": request.validation_share, "test": request.test_share}
    splits = cut(groups or contents, [0] * len(contents), shares, request.seed)
    count = sum(usable)
    facts = DatasetFacts(
        task="two-tower",
        form="vectors",
        rows=count,
        columns=tuple(member.name for member in members),
        roles={"query": (queries.name,), "passage": (passages.name,)},
        splits={
            name: sum(keep and split == code for keep, split in zip(usable, splits, strict=True))
            for code, name in enumerate(SPLITS)
        },
        warnings=tuple(_warnings(contents, bad, groups)),
        bad_rows=tuple(bad.listed),
        bad_row_count=bad.count,
        choices={
            "format": Choice("NumPy vectors (NPZ)", "its first bytes"),
            "task": Choice("two-tower", "pairs of vectors"),
            "query": Choice(f"{queries.name}, {queries.shape[1]} numbers each", because),
            "passage": Choice(f"{passages.name}, {passages.shape[1]} numbers each", because),
            "splits": Choice("10% for validation and 10% for test", f"cut by content and seed {request.seed}"),
        },
        files=(str(path),),
        fingerprint=raw.sha256,
    )
    return VectorSurvey(
        request=request,
        facts=facts,
        path=path,
        queries=queries.name,
        passages=passages.name,
        groups=groups,
        usable=usable,
        splits=splits,
    )


def list_members(path: Path) -> list[VectorArray]:
    """The arrays of an NPZ file, without reading them."""
    numpy = _numpy()
    found = []
    with reading(path), _opened(path) as archive:
        for entry in archive.namelist():
            with archive.open(entry) as file:
                shape, _, dtype = _header(numpy, file, path, entry)
            if dtype.hasobject:
                raise RequestError(
                    f"the array {entry.removesuffix('.npy')!r} of {path.name} holds Python objects",
                    seen="opening those may run any code, so they never are",
                    try_next=("save it as numbers or text: numpy.asarray(values, dtype=...)",),
                )
            found.append(VectorArray(name=entry.removesuffix(".npy"), shape=shape, kind=dtype.kind))
    return found


def slices(path: Path, name: str) -> Iterator[tuple[int, "NDArray[Any]"]]:
    """Read an array's rows in slices: (first row, rows as float32)."""
    numpy = _numpy()
    with reading(path), _opened(path) as archive, archive.open(f"{name}.npy") as file:
        shape, is_fortran, dtype = _header(numpy, file, path, name)
        if is_fortran:
            raise RequestError(
                f"the array {name!r} of {path.name} is stored column by column",
                try_next=("save it with numpy.ascontiguousarray(array)",),
            )
        row_bytes = dtype.itemsize * shape[1]
        for at in range(0, shape[0], _SLICE_ROWS):
            count = min(_SLICE_ROWS, shape[0] - at)
            held = file.read(count * row_bytes)
            if len(held) < count * row_bytes:
                raise RequestError(f"the array {name!r} of {path.name} is cut off", seen=f"at row {at:,}")
            yield at, numpy.frombuffer(held, dtype=dtype).reshape(count, shape[1]).astype(numpy.float32)


def _find_pair(path: Path, members: list[VectorArray]) -> tuple[VectorArray, VectorArray, str]:
    tables = [member for member in members if len(member.shape) == 2 and member.kind == "f"]
    by_name = {member.name: member for member in tables}
    query, passage = names.find(_QUERY, tuple(by_name)), names.find(_PASSAGE, tuple(by_name))
    held = ", ".join(f"{member.name} {'x'.join(map(str, member.shape))}" for member in members)
    if query and passage:
        pair, because = (by_name[query], by_name[passage]), "named so"
    elif len(tables) == 2:
        pair, because = (tables[0], tables[1]), "the two arrays of vectors, in their order"
    else:
        raise RequestError(
            f"{path.name} does not hold one array of queries and one of passages",
            seen=held or "no arrays",
            try_next=("numpy.savez(FILE, queries=..., passages=...), both of numbers with a row for each pair",),
        )
    if pair[0].shape[0] != pair[1].shape[0]:
        raise RequestError(
            f"{path.name} has a different number of queries and passages, so they are not pairs",
            seen=held,
            try_next=("give row i of the passages for row i of the queries",),
        )
    if pair[0].shape[0] < 2 or not pair[0].shape[1] or not pair[1].shape[1]:
        raise RequestError(f"{path.name} holds too few vectors to train on", seen=held)
    return *pair, because


def _check_rows(path: Path, name: str, at: int, rows: "NDArray[Any]", usable: bytearray, bad: BadRows) -> None:
    numpy = _numpy()
    finite = numpy.isfinite(rows).all(axis=1)
    nonzero = rows.any(axis=1)
    for offset in numpy.flatnonzero(~(finite & nonzero)).tolist():
        if usable[at + offset]:
            usable[at + offset] = 0
            reason = "the vector is all zeros" if finite[offset] else "the vector holds NaN or infinity"
            bad.add(path, at + offset + 1, reason, column=name)


def _read_groups(path: Path, members: list[VectorArray], count: int) -> "array[int]":
    name = names.find(_GROUP, tuple(member.name for member in members))
    member = next((one for one in members if one.name == name), None)
    if member is None or member.shape != (count,):
        return array("Q")
    with reading(path), _numpy().load(path, allow_pickle=False) as archive:
        return array("Q", (content_hash(str(value)) for value in archive[member.name].tolist()))


def _warnings(contents: "array[int]", bad: BadRows, groups: "array[int]") -> Iterator[str]:
    if bad.count:
        reasons = ", ".join(f"{reason} ({count:,})" for reason, count in bad.reasons.most_common(3))
        yield f"bad rows, left out: {reasons}"
    if copies := len(repeated(contents)):
        yield f"{copies:,} queries have duplicates: the same vector stands in several rows"
    if not groups:
        yield "no array of groups (article_ids), so vectors of one article may become each other's negatives"


def _opened(path: Path) -> zipfile.ZipFile:
    try:
        return zipfile.ZipFile(path)
    except zipfile.BadZipFile as error:
        raise RequestError(
            f"{path.name} is damaged: it cannot be opened as NPZ",
            seen=str(error),
            try_next=("copy or make it again",),
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
        raise RequestError(f"the array {name!r} of {path.name} cannot be read", seen=str(error)[:200]) from error
    return shape, is_fortran, dtype


def _numpy() -> Any:
    try:
        import numpy
    except ImportError as error:
        raise RequestError(
            "files of vectors need an extra that is not installed",
            seen=str(error),
            try_next=("pip install 'holdfast[train]'",),
        ) from error
    return numpy
