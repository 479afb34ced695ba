"""Which checkpoint a Trainer continues from: the newest whole one that this run wrote in the same training."""

from __future__ import annotations

import os
from typing import Any

from holdfast_preload import events, history, settings
from holdfast_preload.checkpoints import numbered, read_state, why_broken


def choose_checkpoint(asked: Any, output_dir: str, train: int) -> Any:
    """What to hand to `train(resume_from_checkpoint=...)`: the script's own wish unless it is broken or behind us."""
    ours = _newest_of_this_run(output_dir, train) if settings.get("resume") else ""
    if isinstance(asked, (str, os.PathLike)):
        return _of_a_path(str(asked), ours)
    if asked is True:
        return ours or _newest_whole(output_dir, asked)
    return ours or asked


def is_complete(path: str) -> bool:
    """Say whether a checkpoint is of a training that had ended in the middle of an epoch: the Trainer would go on."""
    state = read_state(path) or {}
    most, epoch = state.get("max_steps") or 0, float(state.get("epoch") or 0)
    return 0 < most <= state.get("global_step", 0) and epoch != int(epoch)


def _of_a_path(asked: str, ours: str) -> str | None:
    reason = why_broken(asked)
    if not reason:
        return ours if ours and _step(ours) > _step(asked) else asked
    if not os.path.isdir(asked):
        return ours or asked  # perhaps a name only the library understands
    history.tell_skipped(asked, reason)
    return ours or _newest_whole(os.path.dirname(os.path.abspath(asked)), None)


def _newest_of_this_run(output_dir: str, train: int) -> str:
    told = history.earlier_events(settings.attempt)
    found = history.saved_by(train, told)
    if not any(event.get("event") == "saving" for event in told):
        found = history.written_since_the_run_began(output_dir, settings.attempt)
    for saved in found:
        if os.path.isdir(saved.path) and _may_continue(saved.path):
            return saved.path
    return ""


def _newest_whole(folder: str, otherwise: Any) -> Any:
    found = numbered(folder)
    for _, path in found:
        if _may_continue(path):
            return path
    if found:
        events.write("starting over", because="no whole checkpoint", folder=folder)
        return None
    return otherwise


def _may_continue(path: str) -> bool:
    reason = why_broken(path)
    if not reason and not _has_optimizer(path):
        reason = "it holds no optimizer state, so training would not go on the same"
    if reason:
        history.tell_skipped(path, reason)
    return not reason


def _has_optimizer(path: str) -> bool:
    return any(name.startswith(("optimizer", "global_step")) for name in os.listdir(path))


def _step(path: str) -> int:
    return int((read_state(path) or {"global_step": 0})["global_step"])
