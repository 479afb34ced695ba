"""Predicts a file of rows: `python -m holdfast.engine.predict JOB_FOLDER`.

Reads `job.json` (model, task, model facts, options) and `inputs.jsonl`. Writes `outputs.jsonl`, one line per row, and
`progress.json` meanwhile; `error.json` if it fails.
"""

import faulthandler
import json
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from holdfast.core.artifacts import write_artifact
from holdfast.core.errors import HoldfastError, error_record
from holdfast.core.records import PredictJob, PredictProgress, require_record, write_record
from holdfast.engine.process_setup import prepare_process


def main(job: Path) -> int:
    """Predict every row of a job; return the exit code."""
    faulthandler.enable()
    prepare_process()
    try:
        return _predict(job)
    except HoldfastError as error:
        write_artifact(job, "error.json", error_record(error))
        return error.exit_code


def _predict(job: Path) -> int:
    from holdfast.engine.predict.predictor import load_predictor  # after the stack dumps are armed

    write_record(job, PredictProgress())
    model = load_predictor(require_record(job, PredictJob))
    done = 0
    with (job / "outputs.jsonl").open("w", encoding="utf-8") as file:
        for rows in _batches(job / "inputs.jsonl", model.rows_at_once):
            for answer in model.predict(rows):
                file.write(json.dumps(answer, ensure_ascii=False) + "\n")
            done += len(rows)
            write_record(job, PredictProgress(stage="rows", done=done))
    return 0


def _batches(path: Path, size: int) -> Iterator[list[dict[str, Any]]]:
    with path.open(encoding="utf-8") as file:
        while rows := [json.loads(line) for line in islice(file, size)]:
            yield rows


if __name__ == "__main__":
    raise SystemExit(main(Path(sys.argv[1])))
