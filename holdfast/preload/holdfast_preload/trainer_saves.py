"""Checkpoints of a Trainer: which were written is told, and one more is made when the script's own come too seldom.

Ours go to `checkpoints/train-N/` of the run folder, so that the script's output folder, its limit on checkpoints and
its best model stay as they would be.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from contextlib import contextmanager
from typing import Any, Iterator

from holdfast_preload import ending, events, settings
from holdfast_preload.cadence import Cadence
from holdfast_preload.checkpoints import numbered
from holdfast_preload.disk import is_disk_full
from holdfast_preload.finite import Numbers
from holdfast_preload.history import changed_at
from holdfast_preload.wraps import Function, in_phase

_KEEP = 2


class Saves:
    """The checkpoints of one training."""

    def __init__(self, train: int, trainer: Any, numbers: Numbers):
        self.train, self.trainer, self.numbers = train, trainer, numbers
        self.folder = os.path.join(settings.run_folder(), "checkpoints", f"train-{train}")
        self.cadence = Cadence()

    def watched(self, save: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Save as the Trainer does, but never bad numbers, and tell of it before and after."""
        step, tells = int(self.trainer.state.global_step), bool(self.trainer.is_world_process_zero())
        path = os.path.abspath(os.path.join(str(self.trainer.args.output_dir), f"checkpoint-{step}"))
        self.numbers.look_at_weights(self.trainer.model, step)
        if tells:
            events.write("saving", path=path, step=step, train=self.train)
        start = time.monotonic()
        try:
            result = in_phase("save")(save)(self.trainer, *args, **kwargs)
        except Exception as error:
            if settings.change("save_on_full_disk") != "skip" or not is_disk_full(error):
                raise
            shutil.rmtree(path, ignore_errors=True)
            events.write("save skipped", path=path, reason=str(error)[:300], step=step)
            events.applied("save_on_full_disk", "skip", "Trainer._save_checkpoint")
            self.cadence.last_end = time.monotonic()
            return None
        seconds = time.monotonic() - start
        if not getattr(self.trainer.args, "save_only_model", False):  # from weights alone nothing can go on
            self.cadence.saved(step, seconds)
        if tells:
            events.write("saved", path=path, step=step, train=self.train, seconds=round(seconds, 3))
        return result

    def is_due(self) -> bool:
        """Say whether a checkpoint of ours is wanted after this step."""
        many = int(getattr(self.trainer.args, "world_size", 1) or 1) > 1
        return self.cadence.is_due(int(self.trainer.state.global_step), self._broadcast if many else None)

    def save(self, model: Any) -> None:
        """Make a checkpoint of ours, and stop when asked; a failed save is an event and no more."""
        step = int(self.trainer.state.global_step)
        if step != self.cadence.last_step and settings.get("may_save", True):
            try:
                with self._elsewhere():
                    self.trainer._save_checkpoint(model, None)
                self._keep_few(step)
            except Exception as error:
                if self.numbers.has_ended:
                    raise
                events.write("save failed", step=step, error=repr(error), train=self.train)
                shutil.rmtree(os.path.join(self.folder, f"checkpoint-{step}"), ignore_errors=True)
                self.cadence.last_end = time.monotonic()
        if self.cadence.must_stop:
            events.write("stopped", step=step, train=self.train, saved=self.cadence.last_step == step)
            ending.leave(143)

    @contextmanager
    def _elsewhere(self) -> Iterator[None]:
        """Let the Trainer's own code save a complete checkpoint into our folder, and nowhere else."""
        args = self.trainer.args
        ours = {
            "output_dir": self.folder,
            "save_total_limit": None,  # ours are counted below
            "save_strategy": "no",  # the best model is the script's affair
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
        """Remove all but the last two, by time: transformers 4 goes by the step, where two that were cut off at later
        steps would have it remove the one just saved.
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
