"""Surveys a file that somebody sent, inside limits: `python -P -m holdfast.service.survey_child FOLDER`.

The file may be a bomb or a riddle, so this process gives itself little memory, time and disk before it looks at it.
It reads and counts; it runs nothing and unpickles nothing. Reads: job.json. Leaves: progress.json, result.json.
"""

import json
import sys
import time
import zipfile
from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.core.artifacts import read_artifact, to_plain, write_artifact
from holdfast.core.errors import HoldfastError, RequestError, error_record
from holdfast.core.text import human_bytes

if TYPE_CHECKING:
    from holdfast.data.data_request import DataRequest, Progress

_PREVIEW_ROWS, _PREVIEW_COLUMNS, _CELL_CHARACTERS = 20, 50, 400
_MOST_LABELS, _MOST_COLUMNS, _MOST_ENTRIES = 300, 500, 10_000
_TEXT_CHARACTERS = 1000
_SAY_EVERY_SECONDS = 0.5
_PACKED = {b"PK\x03\x04": "an Excel, NPZ or ZIP file", b"PAR1": "a Parquet file"}


class SurveyProgress(msgspec.Struct, frozen=True, kw_only=True):
    """How far a survey is."""

    what: str
    done: int = 0
    whole: int | None = None
    unit: str = ""  # "bytes", or empty for rows


def main(folder: Path) -> int:
    """Survey the job in a folder within its limits."""
    job = read_artifact(folder / "job.json")
    set_limits(job["limits"])
    write_artifact(folder, "result.json", survey_upload(job, _Teller(folder, job["limits"])))
    return 0


def set_limits(limits: Mapping[str, int]) -> None:
    """Bound what this process may take; a system that knows a limit not is left as it is."""
    import resource

    wanted = {
        "RLIMIT_AS": limits["memory_bytes"],
        "RLIMIT_CPU": limits["seconds"],
        "RLIMIT_FSIZE": limits["unpacked_bytes"],
        "RLIMIT_NOFILE": 256,
        "RLIMIT_CORE": 0,
    }
    for name, most in wanted.items():
        try:
            resource.setrlimit(getattr(resource, name), (most, most))
        except (AttributeError, ValueError, OSError):
            continue


def survey_upload(job: Mapping[str, Any], on_progress: Any) -> dict[str, object]:
    """What is in the file and what can be trained on it, or why nothing can; never a path of this machine."""
    path, limits = Path(job["path"]), job["limits"]
    found: dict[str, object] = {"state": "refused", "facts": {}, "preview": {}, "problem": {}}
    try:
        check_packed(path, limits)
        # Imported here, under the limits: reading a hostile file starts with the libraries that do.
        from holdfast.data.data_request import DataRequest
        from holdfast.data.survey_dataset import printed_facts, survey
        from holdfast.data.survey_table import TableSurvey

        request = DataRequest(path=path, **_reading(job["choices"]))
        found["preview"] = _preview(request, on_progress)
        surveyed = survey(request, None, on_progress)
        lengths = surveyed.tally.lengths if isinstance(surveyed, TableSurvey) else {}
        histograms = {role: one.histogram() for role, one in lengths.items()}
        found |= {
            "facts": {**_bounded(to_plain(printed_facts(surveyed.facts))), "histograms": histograms},
            "state": "ready",
        }
    except HoldfastError as error:
        found["problem"] = error_record(error)
    except (MemoryError, RecursionError) as error:
        found["problem"] = too_much(str(type(error).__name__), limits)
    except Exception as error:  # a fault of the reader, which must not look like a fault of the service
        seen = f"{type(error).__name__}: {error}"[:300]
        found["problem"] = {"what": "the file could not be read", "seen": seen, "try_next": []}
    return _storable(found, str(path.parent))  # type: ignore[return-value]  # built here, as what JSON can hold


def _preview(request: "DataRequest", on_progress: "Progress") -> dict[str, object]:
    """The columns of a file and its first rows, before anything is decided about them."""
    from holdfast.data.badrows import BadRows
    from holdfast.data.read import open_source
    from holdfast.data.survey_vectors import list_arrays

    source = open_source(request.path, request, on_progress)
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


def too_much(seen: str, limits: Mapping[str, int]) -> dict[str, object]:
    """The problem of a file that takes more memory than an upload may have."""
    most = human_bytes(limits["memory_bytes"])
    return {
        "what": f"reading the file takes more than the {most} of memory that it may have",
        "seen": seen,
        "try_next": ["save it as CSV or JSON lines, which are read a row at a time", "or split it"],
    }


def check_packed(path: Path, limits: Mapping[str, int]) -> None:
    """Refuse archives that would unfold beyond the limit, by what they say of themselves."""
    import gzip
    import zlib

    most = limits["unpacked_bytes"]
    with path.open("rb") as file:
        head = file.read(4)
    if head[:2] == b"\x1f\x8b":
        try:
            with gzip.open(path, "rb") as packed:
                inner = packed.read(4)
        except (OSError, EOFError, zlib.error):
            return  # the reader says what is wrong with it
        if inner in _PACKED:
            raise RequestError(f"{path.name} is {_PACKED[inner]} that was gzipped", try_next=("send it without gzip",))
    if head == b"PK\x03\x04":
        try:
            with zipfile.ZipFile(path) as archive:
                entries = archive.infolist()
        except (zipfile.BadZipFile, NotImplementedError, ValueError, OSError) as error:
            raise RequestError(f"{path.name} is damaged: it cannot be opened", seen=str(error)[:200]) from error
        whole = sum(entry.file_size for entry in entries)
        if whole > most or len(entries) > _MOST_ENTRIES:
            seen = f"{human_bytes(path.stat().st_size)} that unfold to {human_bytes(whole)} in {len(entries):,} files"
            raise RequestError(f"{path.name} unfolds to more than the {human_bytes(most)} allowed", seen=seen)


class _Teller:
    """Writes how far the reading is, and ends it where it goes too far."""

    def __init__(self, folder: Path, limits: Mapping[str, int]):
        self._folder, self._limits, self._said = folder, limits, 0.0

    def __call__(self, what: str, done: int, whole: int | None, unit: str = "") -> None:
        check_amount(done, unit, self._limits)
        if time.monotonic() - self._said > _SAY_EVERY_SECONDS:
            self._said = time.monotonic()
            write_artifact(self._folder, "progress.json", SurveyProgress(what=what, done=done, whole=whole, unit=unit))


def check_amount(done: int, unit: str, limits: Mapping[str, int]) -> None:
    """Refuse more bytes or rows than an upload may have."""
    is_bytes = unit == "bytes"
    most = limits["unpacked_bytes" if is_bytes else "rows"]
    if done > most:
        amount = human_bytes(most) if is_bytes else f"{most:,} rows"
        raise RequestError(
            f"the file holds more than the {amount} allowed",
            seen="counted while it was unpacked and read",
            try_next=("send a part of it", "or have an administrator raise HOLDFAST_UPLOAD_ROWS or _UNPACKED_BYTES"),
        )


def _reading(choices: Mapping[str, Any]) -> dict[str, Any]:
    """What a person decided, in the reader's own names."""
    given = {name: value for name, value in choices.items() if value not in (None, "", [])}
    if "text_column" in given:
        given["text_columns"] = tuple(given.pop("text_column"))
    if "max_bad_rows" in given:
        given["max_bad_share"] = given.pop("max_bad_rows")
    if given.get("delimiter") in ("tab", "\\t"):
        given["delimiter"] = "\t"
    return given


def _cell(value: object) -> str:
    """A value as somebody sees it in the preview."""
    text = (
        value if isinstance(value, str) else "" if value is None else json.dumps(value, ensure_ascii=False, default=str)
    )
    return text if len(text) <= _CELL_CHARACTERS else text[:_CELL_CHARACTERS] + "…"


def _bounded(facts: Any) -> dict[str, Any]:
    """Facts that fit in a row: the commonest labels, the first columns, the file by its name."""
    labels: dict[str, int] = facts["labels"]
    kept = sorted(labels, key=lambda name: -labels[name])[:_MOST_LABELS]
    return {
        **facts,
        "label_count": len(labels),
        "labels": {name: labels[name] for name in labels if name in set(kept)} if len(labels) > len(kept) else labels,
        "columns": facts["columns"][:_MOST_COLUMNS],
        "files": [Path(name).name for name in facts["files"]],
    }


def _storable(value: object, folder: str) -> object:
    """Texts that every database can keep, each bounded, and without the folder that the upload lies in."""
    if isinstance(value, str):
        text = value.replace(f"{folder}/", "").replace("\0", "\ufffd").encode("utf-8", "replace").decode()
        return text if len(text) <= _TEXT_CHARACTERS else text[:_TEXT_CHARACTERS] + "…"
    if isinstance(value, dict):
        return {str(_storable(str(key), folder)): _storable(item, folder) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_storable(item, folder) for item in value]
    return value


if __name__ == "__main__":
    raise SystemExit(main(Path(sys.argv[1])))
