"""Opens one file of rows: CSV, TSV, JSON, JSON lines, Parquet, Excel or plain text, also gzipped.

The content decides about the format, not the name. Rows come one at a time as (place, values); the place is the line in
a text file and the number of the record in any other.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from holdfast.core.data_warnings import DataWarning, data_warning
from holdfast.core.errors import RequestError, set_to, type_command
from holdfast.core.plan import Choice
from holdfast.core.progress import Progress, no_progress
from holdfast.data.badrows import BadRows
from holdfast.data.class_folder import COLUMNS, class_rows, look_at_classes
from holdfast.data.csvrows import Row, csv_rows, read_header
from holdfast.data.data_request import DataRequest
from holdfast.data.frames import frame_columns, frame_rows, sheet_warnings
from holdfast.data.jsonrows import json_line_rows, json_rows
from holdfast.data.magic import looks_like_text
from holdfast.data.rawfile import HEAD_BYTES, RawFile, look_at, open_text, reading
from holdfast.data.saved_dataset import class_names, named
from holdfast.data.sniff import DELIMITERS, Dialect, kind_of_text, sniff_table

NAMES: Mapping[str, str] = {
    "csv": "CSV", "json": "JSON", "jsonl": "JSON lines", "parquet": "Parquet", "arrow": "Arrow", "excel": "Excel",
    "text": "plain text", "npz": "NumPy vectors (NPZ)", "classes": "a folder of text files for each class",
}  # fmt: skip
_EXTENSIONS: Mapping[str, tuple[str, ...]] = {
    "csv": (".csv", ".tsv", ".tab", ".txt", ".psv"),
    "json": (".json", ".jsonl"),
    "jsonl": (".jsonl", ".ndjson", ".json"),
    "parquet": (".parquet", ".pq"),
    "arrow": (".arrow", ".feather", ".ipc"),
    "excel": (".xlsx", ".xls", ".xlsm", ".xlsb"),
    "text": (".txt", ".md", ".text"),
    "npz": (".npz",),
}
_BINARY = (".parquet", ".pq", ".arrow", ".feather", ".xlsx", ".xls", ".xlsm", ".xlsb", ".npz")
_CODE: Mapping[str, str] = {
    ".py": "a Python script", ".ipynb": "a notebook", ".sh": "a shell script", ".toml": "a file of settings",
    ".yaml": "a file of settings", ".yml": "a file of settings", ".ini": "a file of settings", ".js": "a script",
    ".html": "a web page", ".htm": "a web page", ".c": "source code", ".cpp": "source code", ".h": "source code",
    ".rs": "source code", ".go": "source code", ".java": "source code",
}  # fmt: skip
FORMATS = "CSV, TSV, JSON, JSON lines, Parquet, Arrow, Excel or NPZ (all but NPZ also gzipped), or an archive of them"
_SAMPLE_ROWS = 1000
_WHY_NOT = dict.fromkeys(
    ("a pickle", "a PyTorch checkpoint"), "loading one can run arbitrary code, so Holdfast never does"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RowFile:
    """A file whose format is known."""

    raw: RawFile
    kind: str  # a key of NAMES
    columns: tuple[str, ...]
    repeated: tuple[str, ...] = ()  # names that several columns have
    dialect: Dialect | None = None  # of a table in text
    class_names: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # of columns with numbers in their place
    choices: Mapping[str, Choice[str]]
    warnings: tuple[DataWarning, ...] = ()

    @property
    def path(self) -> Path:
        """Where the file is."""
        return self.raw.path

    def rows(self, bad: BadRows) -> Iterator[Row]:
        """Read every row; unreadable ones are noted as bad."""
        if self.kind == "csv":
            assert self.dialect is not None
            return csv_rows(self.raw, self.dialect, self.columns, bad)
        if self.kind == "jsonl":
            return json_line_rows(self.raw, bad)
        if self.kind == "json":
            return json_rows(self.raw, bad)
        if self.kind == "text":
            return _paragraphs(self.raw)
        if self.kind == "classes":
            return class_rows(self.raw, bad)
        return self._with_names(frame_rows(self.raw)) if self.class_names else frame_rows(self.raw)

    def _with_names(self, rows: Iterator[Row]) -> Iterator[Row]:
        for number, row in rows:
            yield number, row | {name: named(row.get(name), names) for name, names in self.class_names.items()}


def open_rows(path: Path, request: DataRequest, on_progress: Progress = no_progress) -> RowFile:
    """Find out how to read a file."""
    if path.is_dir():
        raw, because = look_at_classes(path, on_progress), f"{path.name} has a subfolder for each class"
        return RowFile(raw=raw, kind="classes", columns=COLUMNS, choices=_choices(raw, Choice("classes", because)))
    raw = look_at(path, request.encoding, on_progress)
    if raw.binary == "npz":
        return RowFile(raw=raw, kind="npz", columns=(), choices=_choices(raw, Choice("npz", "its first bytes")))
    if raw.binary in ("parquet", "arrow", "excel"):
        return _open_frame(raw)
    if raw.binary:
        raise _not_data(raw)
    return _open_text(raw, request)


def _open_frame(raw: RawFile) -> RowFile:
    kind = raw.binary
    columns = frame_columns(raw)
    return RowFile(
        raw=raw,
        kind=kind,
        columns=columns,
        class_names={name: names for name, names in class_names(raw.path).items() if name in columns},
        choices=_choices(raw, Choice(kind, "its first bytes")),
        warnings=(*_misnamed(raw, kind), *sheet_warnings(raw)),
    )


def _open_text(raw: RawFile, request: DataRequest) -> RowFile:
    sample = _sample(raw)
    extension = _extension(raw.path)
    _refuse_code(raw, sample, extension)
    found = kind_of_text(sample, extension)
    if request.delimiter or request.header is not None:
        found = Choice("csv", "a delimiter or a header was requested")
    kind = found.value
    choices = {**_choices(raw, found), "encoding": raw.encoding}
    warnings = [*_misnamed(raw, kind)]
    if raw.encoding.value in ("cp1252", "latin-1"):
        other = set_to("encoding", note="if letters look wrong")
        encoding = {"encoding": raw.encoding.value, "because": raw.encoding.because}
        warnings.append(data_warning("guessed-encoding", other, file=raw.path.name, **encoding))
    if kind == "text":
        return RowFile(raw=raw, kind=kind, columns=("text",), choices=choices, warnings=tuple(warnings))
    if kind != "csv":
        columns = _keys(raw, kind)
        return RowFile(raw=raw, kind=kind, columns=columns, choices=choices, warnings=tuple(warnings))
    dialect = sniff_table(
        sample, is_whole=raw.size_bytes <= HEAD_BYTES, delimiter=request.delimiter, header=request.header
    )
    header = read_header(raw, dialect)
    if extension in _BINARY and len(header.columns) == 1 and not request.delimiter and request.header is None:
        raise RequestError(
            f"{raw.path.name} is named {extension}, but is a text without columns",
            found=f"it begins with {sample[:60]!r}",
            try_next=(f"save or copy it again as {extension}", "give it an extension for text, such as .txt or .csv"),
        )
    delimiter = dialect.delimiter
    named = DELIMITERS.get(delimiter.value, repr(delimiter.value)) if len(header.columns) > 1 else "none"
    choices["delimiter"] = Choice(named, delimiter.because)
    choices["header"] = Choice("yes" if dialect.has_header.value else "no", dialect.has_header.because)
    if not dialect.has_header.value:
        other = set_to("header", value=True, note="if the first row names the columns")
        warnings.append(data_warning("no-header", other, file=raw.path.name, because=dialect.has_header.because))
    return RowFile(
        raw=raw,
        kind="csv",
        columns=header.columns,
        repeated=header.repeated,
        dialect=dialect,
        choices=choices,
        warnings=tuple(warnings),
    )


def _refuse_code(raw: RawFile, sample: str, extension: str) -> None:
    """Refuse code and pointers, which could be read line by line but are not data."""
    name = raw.path.name
    if sample.startswith("version https://git-lfs"):
        raise RequestError(
            f"{name} is a Git LFS pointer, not the data itself",
            found=f"{raw.size_bytes:,} bytes",
            try_next=(type_command("git lfs pull"),),
        )
    if extension in _CODE:
        commands = {".py": f"holdfast run -- python {name}", ".toml": f"holdfast train --config {name}"}
        advice = (type_command(commands[extension]),) if extension in commands else ()
        raise RequestError(
            f"{name} is {_CODE[extension]}, not a dataset",
            found=f"its name ends in {extension}",
            try_next=(*advice, "rename it to .txt to train a language model on it"),
        )


def _sample(raw: RawFile) -> str:
    try:
        with open_text(raw) as file, reading(raw.path):
            return file.read(HEAD_BYTES)
    except (LookupError, UnicodeError) as error:
        raise RequestError(
            f"{raw.path.name} cannot be read as {raw.encoding.value}",
            found=str(error)[:200],
            try_next=(set_to("encoding", note="the encoding the file was saved in"),),
            setting="encoding",
        ) from error


def _keys(raw: RawFile, kind: str) -> tuple[str, ...]:
    """Every key of the first rows, in the order of appearance."""
    ignored = BadRows(1.0)
    rows = json_rows(raw, ignored) if kind == "json" else json_line_rows(raw, ignored)
    found: dict[str, None] = {}
    for _, row in islice(rows, _SAMPLE_ROWS):
        found |= dict.fromkeys(row)
    return tuple(found)


def _paragraphs(raw: RawFile) -> Iterator[Row]:
    """Paragraphs of running text; single lines if no line is empty."""
    with open_text(raw) as file, reading(raw.path):
        has_breaks = "\n\n" in _sample(raw).replace("\r\n", "\n")
        start = 1
        held: list[str] = []
        for number, line in enumerate(file, start=1):
            if line.strip():
                start = start if held else number
                held.append(line.strip("\r\n"))
            if held and (not has_breaks or not line.strip()):
                yield start, {"text": "\n".join(held)}
                held = []
        if held:
            yield start, {"text": "\n".join(held)}


def _choices(raw: RawFile, kind: Choice[str]) -> dict[str, Choice[str]]:
    packed = ", gzipped" if raw.is_gzip else ""
    return {"format": Choice(NAMES[kind.value] + packed, kind.because)}


def _extension(path: Path) -> str:
    suffixes = [suffix.lower() for suffix in path.suffixes]
    return next((suffix for suffix in reversed(suffixes) if suffix not in (".gz", ".gzip")), "")


def _misnamed(raw: RawFile, kind: str) -> tuple[DataWarning, ...]:
    path, packed = raw.path, raw.path.suffix.lower()
    if packed == ".zip" or (packed in (".gz", ".gzip") and not raw.is_gzip):
        return (data_warning("misnamed", file=path.name, extension=packed, format=NAMES[kind]),)
    extension = _extension(path)
    others = {ending for endings in _EXTENSIONS.values() for ending in endings}
    if extension in others and extension not in _EXTENSIONS[kind]:
        return (data_warning("misnamed", file=path.name, extension=extension, format=NAMES[kind]),)
    return ()


def _not_data(raw: RawFile) -> RequestError:
    name = raw.path.name
    if raw.binary == "binary data" and (holed := _full_of_zeros(raw)):
        return holed
    if raw.path.suffix.lower() in (".gz", ".gzip") and not raw.is_gzip:
        return RequestError(
            f"{name} is named {raw.path.suffix} but is not gzip: it is {raw.binary}",
            found=f"the first bytes are {raw.head[:8].hex(' ')}",
            try_next=("copy or download the file again",),
        )
    is_packed = "archive" in raw.binary or "compressed" in raw.binary
    return RequestError(
        f"{name} is {raw.binary}, not a dataset",
        found=_WHY_NOT.get(raw.binary, f"the first bytes are {raw.head[:8].hex(' ')}"),
        try_next=("unpack it and use the file inside",) if is_packed else (f"use {FORMATS}",),
    )


def _full_of_zeros(raw: RawFile) -> RequestError | None:
    """The error for a text with many NUL bytes or for nothing but NUL bytes; None for other binary data."""
    rest = raw.head.replace(b"\x00", b"")
    if len(rest) == len(raw.head) or not looks_like_text(rest):
        return None
    return RequestError(
        f"{raw.path.name} is a text with NUL bytes" if rest else f"{raw.path.name} is all NUL bytes",
        found=f"{raw.zeros:,} of {raw.size_bytes:,} bytes are NUL, the first at byte {raw.head.index(0):,}",
        try_next=("save it again as UTF-8 text",) if rest else ("copy or download the file again",),
    )
