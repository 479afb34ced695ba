"""Lightning's Trainer: `ckpt_path` of the newest whole checkpoint, checkpoints by the clock, device, precision,
phases.
"""

from __future__ import annotations

from typing import Any

from holdfast_preload.wraps import around, in_phase


def after_trainer(module: Any) -> None:
    """Watch every Trainer."""


def after_evaluation_loop(module: Any) -> None:
    """Evaluating, inside a fit too."""
    around(module._EvaluationLoop, "run", in_phase("evaluate"))
