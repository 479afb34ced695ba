"""Reports the files that a script saves itself: what its own resume option can continue from."""

from __future__ import annotations

import os
from typing import Any

from holdfast_preload import event_writer
from holdfast_preload.beat_page import BEAT, NUMBERS
from holdfast_preload.wraps import Function, given

_MOST = 10_000  # paths reported by one process
_reported: set[tuple[str, bool]] = set()  # paths, and whether they were saved after the first step


def reporting(argument: str) -> Any:
    """Wrap a function so that the path it is given as this argument is reported once it is saved.

    Saves inside other saves are parts of those: a Trainer's checkpoint, `save_pretrained`.
    """

    def make(save: Function) -> Function:
        def saved(*args: Any, **kwargs: Any) -> Any:
            is_part = BEAT.phase == NUMBERS["save"]
            result = save(*args, **kwargs)
            if not is_part:
                _report(result if argument == "return" else given(save, args, kwargs).get(argument))
            return result

        return saved

    return make


def _report(target: Any) -> None:
    if not isinstance(target, (str, os.PathLike)) or len(_reported) >= _MOST:
        return  # an open file or a buffer
    path = os.path.abspath(os.fsdecode(target))
    if (path, BEAT.step > 0) not in _reported:
        _reported.add((path, BEAT.step > 0))
        event_writer.write("file_saved", path=path, step=BEAT.step)
