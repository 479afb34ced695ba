"""Finds NaN and infinity in what a Trainer logs and saves, and ends a run that no longer learns.

Without this, HF's Trainer logs a loss of 0.0 next to a gradient norm of NaN, continues to the end and exits with 0.
With loss scaling (float16) single steps may overflow and are skipped, so there it takes several in a row.
"""

from __future__ import annotations

import math
import sys
from typing import Any, Callable, Optional

from holdfast_preload import event_writer
from holdfast_preload.checkpoint_files import not_finite

_SCALED_PATIENCE = 3


class LossCheck:
    """The losses and gradient norms of one training."""

    def __init__(self, train: int, is_scaled: bool = False):
        self.train = train
        self.patience = _SCALED_PATIENCE if is_scaled else 1
        self.bad_in_a_row = 0
        self.last_finite_step = 0
        self.has_ended = False

    def check_log(self, log: dict[str, Any], step: int, is_reported: bool = True) -> None:
        """Report a log to the supervisor; raise if its loss or gradient norm is NaN or infinite."""
        if is_reported:
            values = {name: _plain(value) for name, value in log.items()}
            event_writer.write("logged", step=step, train=self.train, values=values)
        if "loss" not in log and "grad_norm" not in log:
            return
        bad = not_finite(log)
        if not bad:
            self.bad_in_a_row, self.last_finite_step = 0, step
            return
        self.bad_in_a_row += 1
        if self.bad_in_a_row >= self.patience:
            self.end(step, ", ".join(f"{name} {log[name]}" for name in ("loss", "grad_norm") if name in log))

    def check_weights(self, model: Any, step: int, are_finite: Optional[Callable[[Any], bool]] = None) -> None:
        """Raise if the weights about to be saved hold NaN or infinity; `are_finite` for other libraries than torch."""
        if (are_finite or torch_weights_are_finite)(model):
            self.last_finite_step = max(self.last_finite_step, step)
        else:
            self.end(step, "weights that are NaN or infinite")

    def end(self, step: int, reason: str) -> None:
        """End the run with a message that the supervisor knows."""
        self.has_ended = True
        event_writer.write(
            "bad_numbers_found", reason=reason, step=step, last_finite_step=self.last_finite_step, train=self.train
        )
        raise RuntimeError(
            f"loss is not finite at step {step} ({reason}), training stopped;"
            f" the last finite loss was at step {self.last_finite_step}"
        )


def numbers_of(metrics: dict[str, Any]) -> dict[str, float | None]:
    """The metrics that are numbers; None for NaN and infinity, which JSON does not have."""
    found = {name: value.item() if hasattr(value, "item") else value for name, value in metrics.items()}
    numbers = {name: value for name, value in found.items() if isinstance(value, (int, float))}
    return {name: value if math.isfinite(value) else None for name, value in numbers.items()}


def _plain(value: Any) -> Any:
    """A logged value for JSON, which has no NaN and no infinity."""
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def torch_weights_are_finite(model: Any) -> bool:
    """Sum the weights: one NaN or infinity shows in the sum. Weights that cannot be summed count as finite."""
    torch: Any = sys.modules.get("torch")
    if torch is None or not hasattr(model, "parameters"):
        return True
    try:
        with torch.no_grad():
            sums = [
                parameter.detach().sum(dtype=torch.float32)
                for parameter in model.parameters()
                if parameter.is_floating_point() and parameter.device.type != "meta"
            ]
            devices = {value.device for value in sums}
            totals = [torch.stack([value for value in sums if value.device == device]).sum() for device in devices]
            return all(math.isfinite(float(total)) for total in totals)
    except Exception as error:
        event_writer.write_once("hook_failed", where="finite weights", error=repr(error))
        return True
