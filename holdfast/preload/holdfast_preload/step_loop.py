"""`holdfast.steps`: the steps of a torch loop written by hand, which continues exactly after a kill.

Under `holdfast run`, checkpoints go to `checkpoints/loop-N/step-K/` of the run folder, where N counts the script's
loops. Elsewhere the loop is a plain `range`, unless the script names a folder. A checkpoint is made between two
iterations, and only after an optimizer step, so that no half-accumulated gradient is lost.
"""

from __future__ import annotations

import os
import re
import sys
import time
from typing import Any, Iterator, Optional

from holdfast_preload import event_writer, exit_marks, graceful_stop, loader_state, script_settings
from holdfast_preload import whole_folders as folders
from holdfast_preload.beat_page import BEAT, FIRST_STEP, NUMBERS
from holdfast_preload.loss_check import torch_weights_are_finite
from holdfast_preload.save_timer import SaveTimer
from holdfast_preload.weight_check import WEIGHTS

_NUMBERED = re.compile(r"step-(\d+)$")
_STATE = "state.pt"


def steps_of(parts: tuple[Any, ...], total: int, folder: Optional[str], save_seconds: float) -> Iterator[int]:
    """The numbers of the steps that are left to do, saving and restoring all parts on the way."""
    for part in parts:
        if not (hasattr(part, "state_dict") and hasattr(part, "load_state_dict")):
            raise TypeError(
                f"holdfast.steps cannot save {type(part).__name__}: it needs state_dict() and load_state_dict(). "
                "Pass the model, the optimizer and the number of steps, then schedulers, scalers and the like"
            )
    if not (folder or script_settings.attempt):
        return iter(range(total))
    return StepLoop(parts, total, folder, save_seconds).run()


class StepLoop:
    """One loop of the script."""

    count = 0

    def __init__(self, parts: tuple[Any, ...], total: int, folder: Optional[str], save_seconds: float):
        StepLoop.count += 1
        self.number, self.parts, self.total = StepLoop.count, parts, total
        own = os.path.join(script_settings.run_folder(), "checkpoints", f"loop-{self.number}")
        self.folder = os.path.abspath(folder) if folder else own
        self.may_resume = bool(folder) or bool(script_settings.get("resume"))
        self.timer = SaveTimer(save_seconds)
        self.has_stepped = True
        self.base = BEAT.step  # steps of the script's earlier loops

    def run(self) -> Iterator[int]:
        """Yield the steps that are left."""
        if int(os.environ.get("WORLD_SIZE") or 1) > 1:
            event_writer.write_once("not_observed", module="holdfast", name="steps", because="several processes")
            yield from range(self.total)
            return
        first = self._restored()
        self._begin(first)
        optimizer = self.parts[1]
        handle = None
        if hasattr(optimizer, "register_step_post_hook"):
            handle = optimizer.register_step_post_hook(self._stepped)
        try:
            for step in range(first, self.total):
                self.has_stepped = handle is None
                yield step
                self._after(step + 1)
            if self.timer.last_step != self.total and first < self.total:
                self._save(self.total)  # so that a kill after the loop costs none of it
        finally:
            graceful_stop.disarm()
            if handle is not None:
                handle.remove()

    def _stepped(self, *_: Any) -> None:
        self.has_stepped = True

    def _restored(self) -> int:
        """Restore the newest intact checkpoint; return how many steps it had done, 0 without one."""
        for done, path in self._checkpoints() if self.may_resume else ():
            reason = folders.why_broken(path)
            if reason:
                event_writer.write("checkpoint_rejected", path=path, reason=reason)
                continue
            before = BEAT.enter(NUMBERS["resume"])
            # Not only tensors: optimizers and random states hold plain values. The checksum says that we wrote it.
            state = sys.modules["torch"].load(os.path.join(path, _STATE), map_location="cpu", weights_only=False)
            if len(state["parts"]) != len(self.parts):
                saved, given = len(state["parts"]), len(self.parts)
                raise ValueError(f"{path} holds {saved} parts, but holdfast.steps was given {given}")
            for part, saved_state in zip(self.parts, state["parts"]):  # noqa: B905  (not in Python 3.9)
                part.load_state_dict(saved_state)
            loader_state.set_random_state(state["random"])
            BEAT.leave(before)
            event_writer.write("resumed", checkpoint=path, step=done, train=self.number)
            return done
        if script_settings.get("resume"):
            event_writer.write("started_over", train=self.number)
        return 0

    def _checkpoints(self) -> list[tuple[int, str]]:
        """The checkpoints of this loop with their steps, the furthest first."""
        try:
            names = os.listdir(self.folder)
        except OSError:
            return []
        found = [(int(match[1]), os.path.join(self.folder, name)) for name in names if (match := _NUMBERED.match(name))]
        return sorted(found, reverse=True)

    def _begin(self, first: int) -> None:
        if script_settings.attempt:
            graceful_stop.arm()
            event_writer.write("part_used", what="holdfast.steps", can_stop=True)
        self.timer.last_step = first
        BEAT.step, BEAT.steps = self.base + first, self.base + self.total
        WEIGHTS.last_finite_step = BEAT.step
        BEAT.enter(FIRST_STEP)

    def _after(self, done: int) -> None:
        """Beat, and save or stop if it is time to, between two iterations."""
        if BEAT.step > self.base + done:  # several optimizers step in one iteration
            BEAT.steps = 0
        BEAT.step = max(BEAT.step, self.base + done)
        BEAT.beat()
        if self.has_stepped and self.timer.is_due(done):
            self._save(done)
        if self.has_stepped and self.timer.must_stop:
            is_saved = self.timer.last_step == done
            event_writer.write("training_stopped", step=done, train=self.number, saved=is_saved)
            exit_marks.leave(143)

    def _save(self, done: int) -> None:
        """Make a checkpoint, unless the weights are NaN. A failed save is only an event."""
        if not script_settings.get("may_save", True):
            return
        self.timer.last_end = time.monotonic()
        if not torch_weights_are_finite(self.parts[0]):
            return
        path = os.path.join(self.folder, f"step-{done}")
        before, start = BEAT.enter(NUMBERS["save"]), time.monotonic()
        try:
            folders.write(path, self._fill)
            folders.keep_few(self.folder)
        except Exception as error:
            event_writer.write("checkpoint_failed", step=done, reason=repr(error), train=self.number)
        else:
            seconds = time.monotonic() - start
            self.timer.saved(done, seconds)
            event_writer.write("checkpoint_saved", path=path, step=done, train=self.number, seconds=round(seconds, 3))
        finally:
            BEAT.leave(before)

    def _fill(self, draft: str) -> None:
        states = [part.state_dict() for part in self.parts]
        content = {"parts": states, "random": loader_state.random_state()}
        sys.modules["torch"].save(content, os.path.join(draft, _STATE))
