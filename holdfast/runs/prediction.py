"""Uses a finished model from the shell: texts or a file go in; labels, answers or passages come out.

The model runs in a child process (`python -m holdfast.engine.predict`); this one never imports torch. The two
communicate through a folder of files, so a crash of the child is an error here, with the last lines it wrote.
"""

import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from holdfast.core.artifacts import read_artifact
from holdfast.core.errors import HoldfastError, MachineError, RequestError, install, read_error
from holdfast.core.progress import Progress, no_progress
from holdfast.core.records import PredictOptions, PredictProgress, read_record, write_record
from holdfast.logs.exits import exit_status
from holdfast.runs.finished_model import FinishedModel
from holdfast.runs.observation_wording import observation_text

Row = dict[str, Any]

_LOOK_EVERY_SECONDS = 0.1
_SHOWN_LINES = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A row as given, and the part of it that the model gets."""

    given: Row
    asked: Row = field(default_factory=dict)


def predict(
    model: FinishedModel,
    rows: Iterable[Question],
    options: PredictOptions,
    on_progress: Progress = no_progress,
) -> Iterator[tuple[Row, Row]]:
    """Yield each row with the model's answer, in order. The child has ended before the first row comes."""
    job = Path(tempfile.mkdtemp(prefix="holdfast-predict-"))
    try:
        count = _write_inputs(job, rows)
        (job / "outputs.jsonl").touch()
        if count:
            write_record(job, model.job(options))
            _run_child(job, count, on_progress)
        yield from _pairs(job)
    finally:
        shutil.rmtree(job, ignore_errors=True)


def _write_inputs(job: Path, rows: Iterable[Question]) -> int:
    count = 0
    with (job / "inputs.jsonl").open("w", encoding="utf-8") as asked, (job / "given.jsonl").open("w") as given:
        for row in rows:
            if row.asked:
                asked.write(json.dumps(row.asked, ensure_ascii=False) + "\n")
                count += 1
            given.write(json.dumps([bool(row.asked), row.given], default=str) + "\n")
    return count


def _run_child(job: Path, count: int, on_progress: Progress) -> None:
    with (job / "log").open("wb") as log:
        child = subprocess.Popen(
            [sys.executable, "-m", "holdfast.engine.predict", str(job)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
        try:
            while child.poll() is None:
                progress = read_record(job, PredictProgress)
                if progress and progress.stage == "rows":
                    on_progress("rows", progress.done, count)
                else:
                    on_progress("loading the model" if progress else "loading torch", 0, None)
                time.sleep(_LOOK_EVERY_SECONDS)
        finally:
            if child.poll() is None:
                child.kill()
                child.wait()
    if child.returncode:
        raise _why(job, child.returncode)


def _why(job: Path, code: int) -> HoldfastError:
    said = read_artifact(job / "error.json")
    if said:
        return read_error(said)
    lines = (job / "log").read_text(encoding="utf-8", errors="replace").strip().splitlines()
    if any("No module named" in line and "holdfast" not in line for line in lines):
        return RequestError(
            "using a model needs an extra that is not installed",
            found=lines[-1],
            try_next=[install("train")],
        )
    from holdfast.hazards.diagnose import diagnose
    from holdfast.logs.log_text import read_evidence  # slow to import, and rarely needed

    diagnosis = diagnose(read_evidence("\n".join(lines), str(code)))
    is_named = diagnosis.slug != "unknown"
    words = observation_text(exit_status(code))
    return MachineError(
        f"the process that runs the model ended with {words}" + (f": {diagnosis.title}" if is_named else ""),
        found="\n".join(lines[-_SHOWN_LINES:]) or "it printed nothing",
        try_next=() if is_named else ("holdfast doctor",),
        slug=diagnosis.slug if is_named else "",
    )


def _pairs(job: Path) -> Iterator[tuple[Row, Row]]:
    with (job / "given.jsonl").open(encoding="utf-8") as given, (job / "outputs.jsonl").open(encoding="utf-8") as said:
        for line in given:
            is_asked, row = json.loads(line)
            yield row, json.loads(next(said)) if is_asked else {}
