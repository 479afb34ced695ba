"""The supervisor's settings for this attempt, from `settings.json`; every key is optional.

changes                 names of Plan settings -> values: device, threads, start_method, loader_workers,
                        prefetch_batches, micro_batch, eval_micro_batch, precision, gradient_checkpointing,
                        compile, offline, attention
environment             variables, set again here for scripts that change them
resume                  continue Trainer and Lightning runs from the newest intact checkpoint of this run
micro_batch_factor      split each training batch by this, with as much more accumulation
eval_micro_batch_factor split each evaluation batch by this
save_seconds            maximum seconds between cheap checkpoints; default 60, 0 for every step
may_save                make extra checkpoints next to the script's; default true
run                     folder of the run, if it is not two levels above the attempt's
supervisor              pid of the supervisor; the script ends when the supervisor is gone
"""

from __future__ import annotations

import json
import os

from holdfast_preload import event_writer

TYPE_CHECKING = False  # typing's own would cost every interpreter 5 ms
if TYPE_CHECKING:
    from typing import Any

attempt = ""
_given: dict[str, Any] = {}


def read(folder: str) -> None:
    """Read the attempt's settings; missing or broken ones mean no changes."""
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
        event_writer.write_once("hook_failed", where="settings.json", error=repr(error))


def get(name: str, default: Any = None) -> Any:
    """One setting, or the default if it is missing."""
    value = _given.get(name)
    return default if value is None else value


def change(name: str) -> Any:
    """The value of one change of the plan, or None."""
    return get("changes", {}).get(name)


def run_folder() -> str:
    """The run folder of this attempt."""
    if get("run"):
        return str(get("run"))
    return os.path.dirname(os.path.dirname(os.path.abspath(attempt)))
