"""A step whose loss or gradient is no number: its batch is kept, and the run ends before it touches the weights."""

from pathlib import Path

from holdfast.core.artifacts import write_artifact
from holdfast.engine.captured import StepResult


class BadNumbers(Exception):
    """The loss or the gradient is not a number; the weights were not touched."""


def keep_bad_batch(run: Path | None, result: StepResult, batch: object) -> BadNumbers:
    """Write the batch into the run's folder, where this process is the one that writes; give the error to raise."""
    name = f"nan-batch-{result.step}.json"
    kept = f"its batch is in {run / name}" if run else "its batch is kept by the first rank"
    try:
        if run:
            content = {"step": result.step, "loss": str(result.loss), "norm": str(result.norm), "batch": batch}
            write_artifact(run, name, content)
    except OSError as error:
        kept = f"its batch could not be kept: {error}"
    return BadNumbers(f"nan-loss: step {result.step} gave loss {result.loss} and gradient norm {result.norm}; {kept}")
