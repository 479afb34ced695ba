"""Surveys an uploaded file within limits: `python -P -m holdfast.service.survey_child FOLDER`.

The file may be hostile, so this process limits its own memory, time and disk before it reads it. It reads and counts;
it executes and unpickles nothing. Reads: job.json. Writes: progress.json, result.json.
"""

import json
import re
import sys
import time
import zipfile
from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from holdfast.core.artifacts import read_artifact, to_plain, write_artifact
from holdfast.core.data_warnings import DataWarning
from holdfast.core.env import cache_folder
from holdfast.core.errors import HoldfastError, RequestError, error_record
from holdfast.core.facts import BadRow, Lengths
from holdfast.core.plan import Choice
from holdfast.core.text import human_bytes

if TYPE_CHECKING:
    from holdfast.core.progress import Progress
    from holdfast.data.data_request import DataRequest

_PREVIEW_ROWS, _PREVIEW_COLUMNS, _CELL_CHARACTERS = 20, 50, 400
_MOST_LABELS, _MOST_COLUMNS, _MOST_ENTRIES = 300, 500, 10_000
_TEXT_CHARACTERS = 1000
_PROGRESS_EVERY_SECONDS = 0.5
_PACKED = {b"PK\x03\x04": "an Excel, NPZ or ZIP file", b"PAR1": "a Parquet file"}


class SurveyLimits(msgspec.Struct, frozen=True, kw_only=True):
    """What the survey of one upload may use."""

    memory_bytes: int
    seconds: int
    unpacked_bytes: int
    rows: int


class SurveyJob(msgspec.Struct, frozen=True, kw_only=True):
    """What to survey. Written by `service.jobs.datasets`."""

    path: str
    limits: SurveyLimits
    owner: int = 0  # whose uploads are read one at a time
    choices: dict[str, Any] = {}  # what the user decided, by the names in the form


class SurveyProgress(msgspec.Struct, frozen=True, kw_only=True):
    """How far a survey is."""

    what: str
    done: int = 0
    total: int | None = None
    unit: str = ""  # "bytes", or empty for rows


class UploadFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What the service keeps of the `DatasetFacts` of an upload, with bounds; read from the row by `read_facts`."""

    task: str = ""
    form: str = ""
    rows: int = 0
    columns: tuple[str, ...] = ()  # the first ones
    text_column: str | None = None
    label_column: str | None = None
    labels: dict[str, int] = {}  # the most common ones
    label_count: int = 0  # all of them
    splits: dict[str, int] = {}
    lengths: dict[str, Lengths] = {}
    histograms: dict[str, list[tuple[int, int]]] = {}  # role -> shortest length of a bar, and its texts
    warnings: tuple[str, ...] = ()
    warning_details: tuple[DataWarning, ...] = ()
    bad_rows: tuple[BadRow, ...] = ()
    bad_row_count: int = 0
    choices: dict[str, Choice[Any]] = {}


class UploadPreview(msgspec.Struct, frozen=True, kw_only=True):
    """The first rows of an upload, as texts."""

    columns: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()
    left_out_columns: int = 0


class SurveyResult(msgspec.Struct, frozen=True, kw_only=True):
    """How a survey ended, in the form that the database keeps."""

    state: Literal["ready", "refused"]
    facts: dict[str, Any] = {}  # `UploadFacts`, and the rest of what `survey --json` prints
    preview: dict[str, Any] = {}  # `UploadPreview`
    problem: dict[str, Any] = {}  # an error record


def main(folder: Path) -> int:
    """Survey the job in a folder within its limits."""
    job = msgspec.convert(read_artifact(folder / "job.json"), SurveyJob)
    set_limits(job.limits)
    write_artifact(folder, "result.json", survey_upload(job, _ProgressFile(folder, job.limits)))
    return 0


def set_limits(limits: SurveyLimits) -> None:
    """Limit this process; limits that the system does not support are skipped."""
    import resource

    wanted = {
        "RLIMIT_AS": limits.memory_bytes,
        "RLIMIT_CPU": limits.seconds,
        "RLIMIT_FSIZE": limits.unpacked_bytes,
        "RLIMIT_NOFILE": 256,
        "RLIMIT_CORE": 0,
    }
    for name, most in wanted.items():
        try:
            resource.setrlimit(getattr(resource, name), (most, most))
        except (AttributeError, ValueError, OSError):
            continue


def survey_upload(job: SurveyJob, on_progress: "Progress") -> SurveyResult:
    """What is in the file and what can be trained on it, or why nothing can; never a path of this machine."""
    path = Path(job.path)
    facts: dict[str, Any] = {}
    preview: dict[str, Any] = {}
    problem: dict[str, Any] = {}
    try:
        check_packed(path, job.limits)
        # Imported here, under the limits: reading a hostile file starts with the libraries that do it.
        from holdfast.data.data_request import DataRequest
        from holdfast.data.survey_dataset import printed_facts, survey

        request = DataRequest(path=path, **_request_fields(job.choices))
        preview = _preview(request, on_progress)
        surveyed = survey(request, None, on_progress)
        facts = {**_bounded(to_plain(printed_facts(surveyed.facts))), "histograms": surveyed.histograms}
    except HoldfastError as error:
        problem = error_record(error)
    except (MemoryError, RecursionError) as error:
        problem = error_record(too_much(type(error).__name__, job.limits))
    except Exception as error:  # a bug in the reader must not look like a bug in the service
        problem = error_record(
            RequestError("the file could not be read", found=f"{type(error).__name__}: {error}"[:300])
        )
    parts = {"facts": facts, "preview": preview, "problem": problem}
    stored = {name: _storable(part, str(path.parent)) for name, part in parts.items()}
    return msgspec.convert({"state": "refused" if problem else "ready", **stored}, SurveyResult)


def too_much(found: str, limits: SurveyLimits) -> RequestError:
    """The error for a file that needs more memory than an upload may use."""
    return RequestError(
        f"reading the file needs more than the {human_bytes(limits.memory_bytes)} of memory allowed",
        found=found,
        try_next=("save it as CSV or JSON lines, which are read one row at a time", "split the file"),
    )


def check_packed(path: Path, limits: SurveyLimits) -> None:
    """Refuse archives that declare more content than the limit allows."""
    import gzip
    import zlib

    most = limits.unpacked_bytes
    with path.open("rb") as file:
        head = file.read(4)
    if head[:2] == b"\x1f\x8b":
        try:
            with gzip.open(path, "rb") as packed:
                inner = packed.read(4)
        except (OSError, EOFError, zlib.error):
            return  # the reader says what is wrong with it
        if inner in _PACKED:
            raise RequestError(f"{path.name} is {_PACKED[inner]} inside gzip", try_next=("upload it without gzip",))
    if head == b"PK\x03\x04":
        try:
            with zipfile.ZipFile(path) as archive:
                entries = archive.infolist()
        except (zipfile.BadZipFile, NotImplementedError, ValueError, OSError) as error:
            raise RequestError(f"{path.name} is damaged: it cannot be opened", found=str(error)[:200]) from error
        whole = sum(entry.file_size for entry in entries)
        if whole > most or len(entries) > _MOST_ENTRIES:
            unpacked = (
                f"{human_bytes(path.stat().st_size)} with {human_bytes(whole)} of content in {len(entries):,} files"
            )
            raise RequestError(f"{path.name} unpacks to more than the {human_bytes(most)} allowed", found=unpacked)


class _ProgressFile:
    """Writes how far the survey is, and stops it at the limits."""

    def __init__(self, folder: Path, limits: SurveyLimits):
        self._folder, self._limits, self._written = folder, limits, 0.0

    def __call__(self, what: str, done: int, total: int | None, unit: str = "", /) -> None:
        check_amount(done, unit, self._limits)
        if time.monotonic() - self._written > _PROGRESS_EVERY_SECONDS:
            self._written = time.monotonic()
            progress = SurveyProgress(what=what, done=done, total=total, unit=unit)
            write_artifact(self._folder, "progress.json", progress)


def check_amount(done: int, unit: str, limits: SurveyLimits) -> None:
    """Refuse more bytes or rows than an upload may have."""
    most = limits.unpacked_bytes if unit == "bytes" else limits.rows
    if done > most:
        amount = human_bytes(most) if unit == "bytes" else f"{most:,} rows"
        raise RequestError(
            f"the file has more than the {amount} allowed",
            found="counted while reading",
            try_next=("upload a part of it", "ask an administrator to raise HOLDFAST_UPLOAD_ROWS or _UNPACKED_BYTES"),
        )


def _preview(request: "DataRequest", on_progress: "Progress") -> dict[str, Any]:
    """The columns of a file and its first rows, before anything is decided about them."""
    from holdfast.data.badrows import BadRows
    from holdfast.data.files import beir_file, find_files
    from holdfast.data.read import open_rows
    from holdfast.data.sources.vectors import list_arrays

    files = find_files(request, on_progress)
    opened = beir_file(files.beir, "corpus") if files.beir else files.splits["train"][0]
    source = open_rows(opened or request.path, request, on_progress)
    columns: tuple[str, ...] = source.columns
    rows: list[list[object]]
    if source.kind == "npz":
        columns = ("array", "shape")
        arrays = islice(list_arrays(source.path), _PREVIEW_ROWS)
        rows = [[one.name, " x ".join(map(str, one.shape))] for one in arrays]
    else:
        first = islice(source.rows(BadRows(1.0)), _PREVIEW_ROWS)
        rows = [[row.get(column) for column in columns[:_PREVIEW_COLUMNS]] for _, row in first]
    return {
        "columns": list(columns[:_PREVIEW_COLUMNS]),
        "rows": [[_cell(value) for value in row] for row in rows],
        "left_out_columns": max(0, len(columns) - _PREVIEW_COLUMNS),
    }


def _request_fields(choices: Mapping[str, Any]) -> dict[str, Any]:
    """The user's choices as fields of a `DataRequest`."""
    given = {name: value for name, value in choices.items() if value not in (None, "", [])}
    if "text_column" in given:
        given["text_columns"] = tuple(given.pop("text_column"))
    if "max_bad_rows" in given:
        given["max_bad_share"] = given.pop("max_bad_rows")
    if given.get("delimiter") in ("tab", "\\t"):
        given["delimiter"] = "\t"
    return given


def _cell(value: object) -> str:
    """A value as the preview shows it."""
    text = (
        value if isinstance(value, str) else "" if value is None else json.dumps(value, ensure_ascii=False, default=str)
    )
    return text if len(text) <= _CELL_CHARACTERS else text[:_CELL_CHARACTERS] + "…"


def _bounded(facts: Any) -> dict[str, Any]:
    """Facts that fit in a database row: the most common labels, the first columns, the name of the file."""
    labels: dict[str, int] = facts["labels"]
    kept = set(sorted(labels, key=lambda name: -labels[name])[:_MOST_LABELS])
    return {
        **facts,
        "label_count": len(labels),
        "labels": {name: count for name, count in labels.items() if name in kept},
        "columns": facts["columns"][:_MOST_COLUMNS],
        "files": [Path(name).name for name in facts["files"]],
    }


def _storable(value: object, folder: str) -> object:
    """Texts that every database can store, shortened, and without the folder of the upload."""
    if isinstance(value, str):
        unpacked = re.escape(str(cache_folder() / "unpacked"))
        text = (
            re.sub(rf"{unpacked}/[^/\s]+/", "", value.replace(f"{folder}/", ""))
            .replace("\0", "\ufffd")
            .encode("utf-8", "replace")
            .decode()
        )
        return text if len(text) <= _TEXT_CHARACTERS else text[:_TEXT_CHARACTERS] + "…"
    if isinstance(value, dict):
        return {str(_storable(str(key), folder)): _storable(item, folder) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_storable(item, folder) for item in value]
    return value


if __name__ == "__main__":
    raise SystemExit(main(Path(sys.argv[1])))
