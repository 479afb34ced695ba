"""What rows and answers show of a run that somebody works on, read from its folder."""

import logging
import math
from pathlib import Path
from typing import Any

from holdfast.core.artifacts import to_plain
from holdfast.core.errors import RequestError
from holdfast.core.records import RunPlan, read_record
from holdfast.runs.status import Status, read_glance, read_status

_log = logging.getLogger(__name__)


def read_copied(run: Path) -> dict[str, object]:
    """What lists show of a run, for its row; nothing where the folder cannot be read, which must not end the run."""
    try:
        status, plan = read_status(run), read_record(run, RunPlan)
        task = plan.task if plan else ""
    except Exception:
        _log.warning("%s could not be read", run, exc_info=True)
        return {}
    found: dict[str, object] = {
        "phase": status.phase[:40] if _is_going(status) else "",
        "step": status.step,
        "steps": status.steps,
        "loss": status.loss if status.loss is not None and math.isfinite(status.loss) else None,
        "eta_seconds": status.eta_seconds,
        "attempts": len(status.attempts),
        "metrics": to_plain(status.metrics),
    }
    return {**found, "task": task} if task else found


def read_live(run: Path) -> dict[str, Any] | None:
    """What a run does now; None where there is no folder yet."""
    try:
        glance = read_glance(run)
    except RequestError:
        return None
    status = glance.status
    is_going = _is_going(status)
    return {
        "phase": status.phase if is_going else "",
        "step": status.step,
        "steps": status.steps,
        "loss": status.loss,
        "eta_seconds": status.eta_seconds if is_going else None,
        "steps_per_second": glance.steps_per_second if is_going else None,
        "resident_bytes": glance.resident_bytes if is_going else None,
        "doing": glance.doing if is_going else "",
    }


def _is_going(status: Status) -> bool:
    """Whether an attempt runs; between two, the newest phase and speed are those of a dead one."""
    return bool(status.attempts) and status.attempts[-1].outcome == "running"
