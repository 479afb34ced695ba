"""Holdfast makes fine-tuning runs finish."""

TYPE_CHECKING = False  # typing's own would make every import of this package slower
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

__version__ = "0.1.0"


def steps(
    model: "Any", optimizer: "Any", total: int, *others: "Any", folder: str | None = None, save_seconds: float = 60.0
) -> "Iterator[int]":
    """Iterate over the steps of a torch loop, so that under `holdfast run` it continues exactly after any failure.

    Model, optimizer, `others` (a scheduler, a scaler, anything with `state_dict` and `load_state_dict`), the step and
    the random states of Python, numpy and torch are saved at least every `save_seconds`, and restored before the first
    step of a new attempt. Without `holdfast run` this is `range(total)`, or, if `folder` is given, a loop that saves
    there and continues from there. A loop in several processes is never saved.
    """
    import os
    import sys

    preload = os.path.join(os.path.dirname(os.path.abspath(__file__)), "preload")  # noqa: PTH118, PTH120, PTH100
    sys.path.insert(0, preload)  # a package of its own, because scripts of other environments import it too
    try:
        from holdfast_preload.step_loop import steps_of
    finally:
        sys.path.remove(preload)
    return steps_of((model, optimizer, *others), total, folder, save_seconds)
