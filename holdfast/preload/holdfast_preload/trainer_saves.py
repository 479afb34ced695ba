"""Checkpoints of a Trainer: reports the script's own, and makes extra ones when those come too seldom.

Ours go to `checkpoints/train-N/` of the run folder, so that the script's output folder, its limit on checkpoints and
its best model stay as they would be.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import sys
import time
from contextlib import contextmanager
from typing import Any, Iterator

from holdfast_preload import event_writer, exit_marks, script_settings
from holdfast_preload.checkpoint_files import numbered
from holdfast_preload.earlier_saves import changed_at
from holdfast_preload.loss_check import LossCheck
from holdfast_preload.save_timer import SaveTimer
from holdfast_preload.wraps import Function, in_phase

_KEEP = 2


class Saves:
    """The checkpoints of one training."""

    def __init__(self, train: int, trainer: Any, losses: LossCheck):
        self.train, self.trainer, self.losses = train, trainer, losses
        self.folder = os.path.join(script_settings.run_folder(), "checkpoints", f"train-{train}")
        self.timer = SaveTimer()

    def watched(self, save: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Save as the Trainer does, but never NaN, with an event before and after."""
        step, is_reported = int(self.trainer.state.global_step), bool(self.trainer.is_world_process_zero())
        path = os.path.abspath(os.path.join(str(self.trainer.args.output_dir), f"checkpoint-{step}"))
        self.losses.check_weights(self.trainer.model, step)
        if is_reported:
            event_writer.write("checkpoint_started", path=path, step=step, train=self.train)
        start = time.monotonic()
        try:
            result = in_phase("save")(save)(self.trainer, *args, **kwargs)
        except Exception as error:
            if script_settings.change("save_on_full_disk") != "skip" or not is_disk_full(error):
                raise
            shutil.rmtree(path, ignore_errors=True)
            event_writer.write("checkpoint_skipped", path=path, reason=str(error)[:300], step=step)
            event_writer.applied("save_on_full_disk", "skip", "Trainer._save_checkpoint")
            self.timer.last_end = time.monotonic()
            return None
        seconds = time.monotonic() - start
        if not getattr(self.trainer.args, "save_only_model", False):  # weights alone cannot be resumed
            self.timer.saved(step, seconds)
        if is_reported:
            event_writer.write("checkpoint_saved", path=path, step=step, train=self.train, seconds=round(seconds, 3))
        return result

    def is_due(self) -> bool:
        """Whether to make a checkpoint of ours after this step."""
        many = int(getattr(self.trainer.args, "world_size", 1) or 1) > 1
        return self.timer.is_due(int(self.trainer.state.global_step), self._broadcast if many else None)

    def save(self, model: Any) -> None:
        """Make a checkpoint of ours, and stop if requested. A failed save is only an event."""
        step = int(self.trainer.state.global_step)
        if step != self.timer.last_step and script_settings.get("may_save", True):
            try:
                with self._elsewhere():
                    self.trainer._save_checkpoint(model, None)
                self._keep_few(step)
            except Exception as error:
                if self.losses.has_ended:
                    raise
                event_writer.write("checkpoint_failed", step=step, reason=repr(error), train=self.train)
                shutil.rmtree(os.path.join(self.folder, f"checkpoint-{step}"), ignore_errors=True)
                self.timer.last_end = time.monotonic()
        if self.timer.must_stop:
            event_writer.write("training_stopped", step=step, train=self.train, saved=self.timer.last_step == step)
            exit_marks.leave(143)

    @contextmanager
    def _elsewhere(self) -> Iterator[None]:
        """Let the Trainer's own code save a complete checkpoint into our folder, and nowhere else."""
        args = self.trainer.args
        ours = {
            "output_dir": self.folder,
            "save_total_limit": None,  # `_keep_few` limits ours
            "save_strategy": "no",  # the script tracks its best model
            "save_only_model": False,
            "push_to_hub": False,
        }
        theirs = {name: getattr(args, name) for name in ours if hasattr(args, name)}
        os.makedirs(self.folder, exist_ok=True)
        try:
            for name in theirs:
                setattr(args, name, ours[name])
            yield
        finally:
            for name, value in theirs.items():
                setattr(args, name, value)

    def _keep_few(self, step: int) -> None:
        """Remove all but the last two, by time.

        transformers 4 sorts by step; truncated checkpoints of later steps would make it remove the one just saved.
        """
        if getattr(self.trainer.args, "should_save", True):
            others = [path for number, path in numbered(self.folder) if number != step]
            for path in sorted(others, key=changed_at)[: 1 - _KEEP]:
                shutil.rmtree(path, ignore_errors=True)

    def _broadcast(self, values: list[int]) -> list[int]:
        torch: Any = sys.modules["torch"]
        told = torch.tensor(values, device=self.trainer.args.device)
        torch.distributed.broadcast(told, src=0)
        return [int(value) for value in told.tolist()]


_FULL_DISK = re.compile(
    r"No space left on device|os error 28|unexpected pos \d+ vs \d+|iostream error|file write failed"
    r"|Disk quota exceeded"
)


def is_disk_full(error: BaseException) -> bool:
    """Whether an error, or one that led to it, means that the disk is full.

    torch itself reports a full disk as a wrong position in the file.
    """
    seen: BaseException | None = error
    while seen is not None:
        if getattr(seen, "errno", None) in (errno.ENOSPC, errno.EDQUOT) or _FULL_DISK.search(str(seen)):
            return True
        seen = seen.__cause__ or seen.__context__
    return False
