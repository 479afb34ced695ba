"""Writes answers to a file, as CSV or JSON lines depending on its extension, completely or not at all."""

import csv
import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Any

from holdfast.core.artifacts import flush_to_disk
from holdfast.core.errors import MachineError, RequestError

Row = dict[str, Any]

_CSV = {".csv": ",", ".tsv": "\t"}
_JSON = (".jsonl", ".ndjson", ".json")


def check_target(path: Path) -> None:
    """Refuse a file that cannot be written, before the model works for an hour."""
    if path.suffix.lower() not in (*_CSV, *_JSON):
        raise RequestError(
            f"answers cannot be written to {path.name}", found=f"allowed extensions: {', '.join((*_CSV, *_JSON))}"
        )
    if not path.parent.is_dir():
        raise RequestError(f"there is no folder {path.parent}")
    if path.is_dir():
        raise RequestError(f"{path} is a folder", try_next=("give the name of a file in it",))


def write_answers(path: Path, pairs: Iterable[tuple[Row, Row]], *, every_label: bool = False) -> int:
    """Write each row with its answer; returns how many rows were answered."""
    draft = path.with_name(f".{path.name}.{os.getpid()}.draft")
    counted = 0

    def counting() -> Iterator[tuple[Row, Row]]:
        nonlocal counted
        for pair in pairs:
            counted += bool(pair[1])
            yield pair

    try:
        with draft.open("w", encoding="utf-8", newline="") as file:
            delimiter = _CSV.get(path.suffix.lower())
            _write_csv(file, counting(), delimiter, every_label) if delimiter else _write_lines(file, counting())
            file.flush()
            flush_to_disk(file.fileno())
        draft.replace(path)
    except OSError as error:
        raise MachineError(f"the answers cannot be written: {error.strerror}", found=str(path)) from error
    finally:
        draft.unlink(missing_ok=True)
    return counted


def joined(given: Row, said: Row) -> Row:
    """A row with its answer. A column of the same name is kept, and the answer's gets a number."""
    found = dict(given)
    for name, value in said.items():
        free, number = name, 2
        while free in found:
            free, number = f"{name}_{number}", number + 1
        found[free] = value
    return found


def flat(said: Row, every_label: bool = False) -> list[Row]:
    """An answer as lines of a table: one, or one for each passage that was found."""
    if "found" in said:
        return [
            {"rank": rank, "score": one.get("score"), "passage": one.get("text", one.get("passage"))}
            for rank, one in enumerate(said["found"], start=1)
        ]
    chances = said.get("probabilities") or {}
    line = {name: value for name, value in said.items() if name != "probabilities"}
    if isinstance(line.get("predicted"), list):
        names = line["predicted"]
        line["predicted"] = "|".join(map(str, names))
        line["probability"] = "|".join(f"{chances[name]:.4f}" for name in names)
    return [line | ({f"p({name})": chances[name] for name in sorted(chances)} if every_label else {})]


def _write_lines(file: IO[str], pairs: Iterable[tuple[Row, Row]]) -> None:
    for given, said in pairs:
        file.write(json.dumps(joined(given, said), ensure_ascii=False) + "\n")


def _write_csv(file: IO[str], pairs: Iterable[tuple[Row, Row]], delimiter: str, every_label: bool) -> None:
    writer: csv.DictWriter[str] | None = None
    held: list[Row] = []  # rows before the first answer, which names the columns
    for given, said in pairs:
        rows = [joined(given, line) for line in flat(said, every_label)] if said else [given]
        if writer is None:
            held += rows
            if not said:
                continue
            columns = dict.fromkeys(name for row in held for name in row)
            writer = csv.DictWriter(file, list(columns), delimiter=delimiter, extrasaction="ignore")
            writer.writeheader()
            rows, held = held, []
        writer.writerows(_plain(row) for row in rows)
    if held:
        writer = csv.DictWriter(file, list(dict.fromkeys(name for row in held for name in row)), delimiter=delimiter)
        writer.writeheader()
        writer.writerows(_plain(row) for row in held)


def _plain(row: Row) -> Row:
    return {
        name: json.dumps(value, ensure_ascii=False) if isinstance(value, (list, dict)) else value
        for name, value in row.items()
    }
