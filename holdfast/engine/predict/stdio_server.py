"""A model that stays loaded and answers row after row: `python -m holdfast.engine.predict.stdio_server`.

JSON lines on standard input: first the job (model, task, model facts, options), then one row per line. JSON lines on
standard output: `{"ready": true}` once it is loaded, then an answer for each row, or `{"error": {...}}`. It ends when
its input ends, so it never outlives the process that uses it.
"""

import faulthandler
import json
import os
import sys
from typing import IO, Any

import msgspec

from holdfast.core.errors import HoldfastError, error_record
from holdfast.core.records import PredictJob
from holdfast.engine.process_setup import prepare_process


def main() -> int:
    """Load the model of the first line, then answer the others."""
    faulthandler.enable()
    # Libraries that print must not write between the answers, so their output goes to standard error.
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as answers:
        os.dup2(2, 1)
        prepare_process()
        return _serve(sys.stdin, answers)


def _serve(questions: IO[str], answers: IO[str]) -> int:
    from holdfast.engine.predict.predictor import load_predictor  # after the stack dumps are armed

    try:
        model = load_predictor(msgspec.json.decode(questions.readline(), type=PredictJob))
    except HoldfastError as error:
        _send(answers, _error_message(error))
        return error.exit_code
    _send(answers, {"ready": True})
    for line in questions:
        try:
            answer = model.predict([json.loads(line)])[0]
        except HoldfastError as error:
            answer = _error_message(error)
        _send(answers, answer)
    return 0


def _send(answers: IO[str], message: dict[str, Any]) -> None:
    answers.write(json.dumps(message) + "\n")
    answers.flush()


def _error_message(error: HoldfastError) -> dict[str, Any]:
    return {"error": error_record(error)}


if __name__ == "__main__":
    raise SystemExit(main())
