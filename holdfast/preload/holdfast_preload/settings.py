"""What the supervisor asks of this attempt: `settings.json`, every key optional.

changes                 names of Plan settings -> values: device, threads, start_method, loader_workers,
                        prefetch_batches, micro_batch, eval_micro_batch, precision, gradient_checkpointing,
                        compile, offline, attention
environment             variables, set again here for scripts that change them
resume                  continue Trainer and Lightning runs from the newest whole checkpoint this run has made
micro_batch_factor      split each training batch by this, with as much more accumulation
eval_micro_batch_factor split each evaluation batch by this
save_seconds            most seconds between cheap checkpoints; 60, 0 for every step
may_save                make checkpoints of our own beside the script's; true
run                     folder of the run, where it is not the one two above the attempt's
supervisor              pid of the supervisor; the script ends when it is gone
"""

from __future__ import annotations

import json
import os

from holdfast_preload import events

TYPE_CHECKING = False  # typing's own would cost every interpreter 5 ms
if TYPE_CHECKING:
    from typing import Any

attempt = ""
_given: dict[str, Any] = {}


def read(folder: str) -> None:
    """Read the attempt's settings; none, or broken ones, mean no changes."""
    global attempt
    attempt = folder
    _given.clear()
    try:
        with open(os.path.join(folder, "settings.json"), encoding="utf-8") as file:
            found = json.load(file)
        if isinstance(found, dict):
            _given.update(found)
    except FileNotFoundError:
        pass
    except (OSError, ValueError) as error:
        events.write_once("preload failed", where="settings.json", error=repr(error))


def get(name: str, default: Any = None) -> Any:
    """One setting, or the default where it was not given."""
    value = _given.get(name)
    return default if value is None else value


def change(name: str) -> Any:
    """The value a change of the plan asks for, or None."""
    return get("changes", {}).get(name)


def run_folder() -> str:
    """The run this attempt belongs to."""
    if get("run"):
        return str(get("run"))
    return os.path.dirname(os.path.dirname(os.path.abspath(attempt)))
