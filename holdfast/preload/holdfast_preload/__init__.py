"""Watches an unmodified script from the inside: beat, stacks, phases, rungs, resume. Standard library only.

It reads `settings.json` of the attempt folder named by HOLDFAST_ATTEMPT and writes into that folder: `beats/PID`,
`stacks/python-PID.txt` and `events.jsonl`. Nothing of it is ever raised into the script; what goes wrong here is an
event.
"""

from __future__ import annotations

import os
import sys


def arm(attempt: str) -> None:
    """Start watching this process."""
    from holdfast_preload import beat, ending, environment, events, imports, parent, settings, stacks, threads

    events.open_in(attempt)
    settings.read(attempt)
    beat.open_in(attempt)
    if "RANK" in os.environ and "--multiprocessing-fork" not in getattr(sys, "orig_argv", ()):
        events.write("rank", rank=int(os.environ["RANK"]), world_size=int(os.environ.get("WORLD_SIZE", 0)))
    # The end first: exit handlers run in the order from the last to the first.
    for start in (ending.arm, stacks.arm, threads.arm, environment.apply, imports.arm, parent.arm):
        try:
            start()
        except Exception as error:
            events.write("preload failed", where=start.__module__, error=repr(error))
