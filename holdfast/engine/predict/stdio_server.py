"""A model that stays loaded and answers one row after the other: `python -m holdfast.engine.predict.stdio_server`.

JSON lines on standard input: first the job (model, task, what is known of it, options), then a row a line. JSON lines
on standard output: `{"ready": true}` once it is loaded, then an answer for each row, or `{"error": {...}}`. It ends
when its input does, so it never outlives who asks.
"""

import faulthandler
import json
import os
import sys
from pathlib import Path
from typing import IO, Any

from holdfast.core.errors import HoldfastError, error_record
from holdfast.engine.process_setup import prepare_process


def main() -> int:
    """Load the model of the first line, then answer the others."""
    faulthandler.enable()
    # Libraries that print must not write between the answers: their output goes where errors go.
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as answers:
        os.dup2(2, 1)
        prepare_process()
        return _talk(sys.stdin, answers)


def _talk(questions: IO[str], answers: IO[str]) -> int:
    from holdfast.engine.predict.predictor import load_predictor  # after the stack dumps are armed

    job = json.loads(questions.readline())
    try:
        model = load_predictor(Path(job["model"]), job["task"], job["about"], job["options"])
    except HoldfastError as error:
        _say(answers, _words(error))
        return error.exit_code
    _say(answers, {"ready": True})
    for line in questions:
        try:
            said = model.predict([json.loads(line)])[0]
        except HoldfastError as error:
            said = _words(error)
        _say(answers, said)
    return 0


def _say(answers: IO[str], said: dict[str, Any]) -> None:
    answers.write(json.dumps(said) + "\n")
    answers.flush()


def _words(error: HoldfastError) -> dict[str, Any]:
    return {"error": error_record(error)}


if __name__ == "__main__":
    raise SystemExit(main())
