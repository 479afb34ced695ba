"""Reads rows of Parquet, Arrow and Excel files with polars, an extra.

Parquet and Arrow files are read in slices; a stream of Arrow, as `datasets` writes it, and a sheet as a whole.
"""

import datetime
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from holdfast.core.data_warnings import DataWarning, data_warning
from holdfast.core.disk_space import FULL, slug_of, why_not
from holdfast.core.errors import MachineError, RequestError, install, type_command
from holdfast.data.csvrows import Row
from holdfast.data.rawfile import RawFile, open_bytes

_SLICE_ROWS = 20_000


def frame_columns(raw: RawFile) -> tuple[str, ...]:
    """The columns of a Parquet or Arrow file, or of the first sheet that has any."""
    with _as_file(raw) as path, _understood(raw):
        if raw.binary == "excel":
            return tuple(_sheet(path)[1].columns)
        return tuple(_scan(raw, path).collect_schema().names())


def frame_rows(raw: RawFile) -> Iterator[Row]:
    """Read the rows; the first one is 1 in Parquet and Arrow, and 2 in a sheet, below its header."""
    with _as_file(raw) as path:
        if raw.binary != "excel":
            yield from _sliced_rows(raw, path)
            return
        with _understood(raw):
            frame = _sheet(path)[1]
        for number, row in enumerate(frame.iter_rows(named=True), start=2):
            if any(value is not None and str(value).strip() for value in row.values()):  # blank rows are no rows
                yield number, {name: _simple(value) for name, value in row.items()}


def sheet_warnings(raw: RawFile) -> Iterator[DataWarning]:
    """Name the sheets with rows that are not read."""
    if raw.binary == "excel":
        with _as_file(raw) as path, _understood(raw):
            name, _, others = _sheet(path)
        if others:
            yield data_warning("unread-sheets", file=raw.path.name, sheet=name, others=others)


def _scan(raw: RawFile, path: Path) -> Any:
    polars = _polars()
    if raw.binary == "parquet":
        return polars.scan_parquet(path)
    is_stream = not raw.head.startswith(b"ARROW1")
    return polars.read_ipc_stream(path).lazy() if is_stream else polars.scan_ipc(path)


def _sliced_rows(raw: RawFile, path: Path) -> Iterator[Row]:
    start = 0
    with _understood(raw):
        whole = _scan(raw, path)
    while True:
        with _understood(raw):
            part = whole.slice(start, _SLICE_ROWS).collect()
        if not part.height:
            return
        for number, row in enumerate(part.iter_rows(named=True), start=start + 1):
            yield number, {name: _simple(value) for name, value in row.items()}
        start += part.height


def _sheet(path: Path) -> tuple[str, Any, tuple[str, ...]]:
    """The first sheet with rows: its name, its cells as text, and the names of the others with rows."""
    sheets = _polars().read_excel(
        path, sheet_id=0, engine="calamine", infer_schema_length=0, drop_empty_rows=True, raise_if_empty=False
    )
    filled = {name: frame for name, frame in sheets.items() if frame.height and frame.width}
    if not filled:
        raise RequestError(f"{path.name} has no sheet with a header and rows", found=", ".join(sheets) or "no sheets")
    first, *others = filled
    return first, filled[first], tuple(others)


def _polars() -> Any:
    try:
        import polars
    except ImportError as error:
        raise RequestError(
            "Parquet, Arrow and Excel files need an extra that is not installed",
            found=str(error),
            try_next=(install("parquet"), "save the data as CSV or JSON lines"),
        ) from error
    return polars


@contextmanager
def _as_file(raw: RawFile) -> Iterator[Path]:
    """The file itself, or a decompressed temporary copy."""
    if not raw.is_gzip:
        yield raw.path
        return
    with tempfile.TemporaryDirectory(prefix="holdfast-") as folder:
        copy = Path(folder) / raw.path.stem
        try:
            with open_bytes(raw.path) as packed, copy.open("wb") as unpacked:
                shutil.copyfileobj(packed, unpacked, 1_048_576)
        except OSError as error:
            if error.errno not in FULL:
                raise
            raise MachineError(
                f"cannot decompress {raw.path.name} in {tempfile.gettempdir()}",
                found=why_not(error, copy),
                try_next=("free some space there, or set TMPDIR to another folder", type_command(f"gunzip {raw.path}")),
                slug=slug_of(error),
            ) from error
        yield copy


@contextmanager
def _understood(raw: RawFile) -> Iterator[None]:
    """Turn any failure of polars on a damaged file into a RequestError."""
    try:
        yield
    except RequestError:
        raise
    except ImportError as error:
        raise RequestError(
            "Excel files need an extra that is not installed",
            found=str(error).splitlines()[0],
            try_next=(install("parquet"), "save the sheet as CSV"),
        ) from error
    except BaseException as error:  # of polars or its engine; a Rust panic is not an Exception
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise RequestError(
            f"{raw.path.name} cannot be read as {raw.binary.capitalize()}",
            found=(str(error).splitlines() or [type(error).__name__])[0][:200],
            try_next=("open it in the program that created it and save it again",),
        ) from error


def _simple(value: Any) -> object:
    """A value as JSON knows it: numbers, texts, lists and objects unchanged, dates and other types as text."""
    if value is None or isinstance(value, (str, int, float, bool)):
        return value
    if isinstance(value, (datetime.date, datetime.datetime)):
        return value.isoformat()
    if isinstance(value, dict):
        return {str(key): _simple(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_simple(item) for item in value]
    if isinstance(value, bytes):
        return value.decode("utf-8", "surrogateescape")
    return str(value)
