"""Checkpoints of a Trainer: which were written is told, and one more is made when the script's own come too seldom.

Ours go to `checkpoints/train-N/` of the run folder, so that the script's output folder, its limit on checkpoints and
its best model stay as they would be. Saves cost at most one hundredth of the time. With several processes, the first
one decides and all follow, because saving is a thing they do together.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from contextlib import contextmanager
from typing import Any, Iterator

from holdfast_preload import events, settings
from holdfast_preload.finite import Numbers
from holdfast_preload.wraps import Function, in_phase

_SAVE_SECONDS = 60.0
_MOST_COST = 0.01
_KEEP = 2
_LOOK_SECONDS = 1.0


class Saves:
    """The checkpoints of one training."""

    def __init__(self, train: int, trainer: Any, numbers: Numbers):
        self.train, self.trainer, self.numbers = train, trainer, numbers
        self.folder = os.path.join(settings.run_folder(), "checkpoints", f"train-{train}")
        self.began = self.last_end = self.last_look = time.monotonic()
        self.cost_seconds = 0.0
        self.last_step = -1
        self.next_agreement = 1
        self.must_stop = False

    def watched(self, save: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Save as the Trainer does, but never bad numbers, and tell of it before and after."""
        step, tells = int(self.trainer.state.global_step), bool(self.trainer.is_world_process_zero())
        path = os.path.abspath(os.path.join(str(self.trainer.args.output_dir), f"checkpoint-{step}"))
        self.numbers.look_at_weights(self.trainer.model, step)
        if tells:
            events.write("saving", path=path, step=step, train=self.train)
        start = time.monotonic()
        result = in_phase("save")(save)(self.trainer, *args, **kwargs)
        self.last_end = time.monotonic()
        self.cost_seconds, self.last_step = self.last_end - start, step
        if tells:
            events.write("saved", path=path, step=step, train=self.train, seconds=round(self.cost_seconds, 3))
        return result

    def is_due(self) -> bool:
        """Say whether a checkpoint of ours is wanted after this step; the same answer in every process."""
        if self._processes() > 1:
            return self._agree()
        now = time.monotonic()
        if now < self.last_look + min(_LOOK_SECONDS, self._wait_seconds()):
            return False
        self.last_look = now
        return self._wants(now)

    def save(self, model: Any) -> None:
        """Make a checkpoint of ours; a failure is an event, unless the numbers are bad or a stop was asked for."""
        step = int(self.trainer.state.global_step)
        if step != self.last_step and settings.get("may_save", True):
            try:
                with self._elsewhere():
                    self.trainer._save_checkpoint(model, None)
            except OSError as error:
                self._failed(step, error)
            except RuntimeError as error:
                if "loss is not finite" in str(error):
                    raise
                self._failed(step, error)
        if self.must_stop:
            events.write("stopped", step=step, train=self.train, saved=self.last_step == step)
            raise SystemExit(143)

    def _wants(self, now: float) -> bool:
        self.must_stop = os.path.exists(os.path.join(settings.attempt, "stop"))
        return self.must_stop or now >= self.last_end + self._wait_seconds()

    def _wait_seconds(self) -> float:
        if not settings.get("may_save", True):
            return float("inf")
        seconds = float(settings.get("save_seconds", _SAVE_SECONDS))
        return max(seconds, self.cost_seconds / _MOST_COST) if seconds else 0.0  # 0: after every step, for tests

    def _failed(self, step: int, error: BaseException) -> None:
        events.write("save failed", step=step, error=repr(error), train=self.train)
        shutil.rmtree(os.path.join(self.folder, f"checkpoint-{step}"), ignore_errors=True)
        self.last_end = time.monotonic()

    @contextmanager
    def _elsewhere(self) -> Iterator[None]:
        """Let the Trainer's own code save a complete checkpoint into our folder, and nowhere else."""
        args = self.trainer.args
        ours = {
            "output_dir": self.folder,
            "save_total_limit": _KEEP,
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

    def _processes(self) -> int:
        return int(getattr(self.trainer.args, "world_size", 1) or 1)

    def _agree(self) -> bool:
        """Ask the first process at steps all know beforehand, about once a second."""
        step = int(self.trainer.state.global_step)
        if step < self.next_agreement:
            return False
        torch: Any = sys.modules["torch"]
        now = time.monotonic()
        a_step_seconds = (now - self.last_look) / max(1, step - self.next_agreement + 1)
        self.last_look = now
        wants = int(self._wants(now))
        ahead = step + max(1, int(_LOOK_SECONDS / max(a_step_seconds, 1e-3)))
        told = torch.tensor([wants, int(self.must_stop), ahead], device=self.trainer.args.device)
        torch.distributed.broadcast(told, src=0)
        wants, stop, self.next_agreement = (int(value) for value in told.tolist())
        self.must_stop = bool(stop)
        return bool(wants)
