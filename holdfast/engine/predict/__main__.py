"""Answers a file of rows: `python -m holdfast.engine.predict JOB_FOLDER`.

Reads: `job.json` (model, task, what is known of it, options) and `inputs.jsonl`. Leaves: `outputs.jsonl`, a line for
each row, and `progress.json` on the way; `error.json` where it cannot.
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
from holdfast.engine.process_setup import prepare_process


def main(job: Path) -> int:
    """Answer every row of a job; give the exit code."""
    faulthandler.enable()
    prepare_process()
    try:
        return _answer(job)
    except HoldfastError as error:
        write_artifact(job, "error.json", error_record(error))
        return error.exit_code


def _answer(job: Path) -> int:
    from holdfast.engine.predict.predictor import load_predictor  # after the stack dumps are armed

    asked = json.loads((job / "job.json").read_text(encoding="utf-8"))
    write_artifact(job, "progress.json", {"what": "loading the model", "done": 0})
    model = load_predictor(Path(asked["model"]), asked["task"], asked["about"], asked["options"])
    done = 0
    with (job / "outputs.jsonl").open("w", encoding="utf-8") as file:
        for rows in _batches(job / "inputs.jsonl", model.rows_at_once):
            for said in model.predict(rows):
                file.write(json.dumps(said, ensure_ascii=False) + "\n")
            done += len(rows)
            write_artifact(job, "progress.json", {"what": "rows", "done": done})
    return 0


def _batches(path: Path, size: int) -> Iterator[list[dict[str, Any]]]:
    with path.open(encoding="utf-8") as file:
        while rows := [json.loads(line) for line in islice(file, size)]:
            yield rows


if __name__ == "__main__":
    raise SystemExit(main(Path(sys.argv[1])))
