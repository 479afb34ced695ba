"""Ends a run whose loss or gradient became NaN or infinite, before it reaches the weights, and keeps the batch."""

from pathlib import Path

from holdfast.core.artifacts import write_artifact
from holdfast.engine.steps import StepResult


class BadNumbers(Exception):
    """The loss or the gradient is NaN or infinite; the weights are unchanged."""


def keep_bad_batch(run: Path | None, result: StepResult, batch: object) -> BadNumbers:
    """Write the batch into the run folder, if this rank writes, and return the error to raise."""
    name = f"nan-batch-{result.step}.json"
    kept = f"its batch is in {run / name}" if run else "rank 0 keeps its batch"
    try:
        if run:
            content = {"step": result.step, "loss": str(result.loss), "norm": str(result.norm), "batch": batch}
            write_artifact(run, name, content)
    except OSError as error:
        kept = f"its batch could not be written: {error}"
    return BadNumbers(f"nan-loss: step {result.step} gave loss {result.loss} and gradient norm {result.norm}; {kept}")
