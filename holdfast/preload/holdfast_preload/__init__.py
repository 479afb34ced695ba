"""Watches an unmodified script from inside: heartbeat, stacks, phases, changes by the fallback ladder, resume.

Standard library only, because the script may run in another Python than Holdfast's. Reads `settings.json` of the
attempt folder named by HOLDFAST_ATTEMPT, and writes `beats/PID`, `stacks/python-PID.txt` and `events.jsonl` there. It
never raises into the script: an error in here is an event. `import_hook` lists which library gets which hook.
"""

from __future__ import annotations

import os
import sys


def arm(attempt: str) -> None:
    """Start watching this process."""
    from holdfast_preload import (
        beat_page,
        env_changes,
        event_writer,
        exit_marks,
        import_hook,
        parent,
        script_settings,
        stack_dumps,
        thread_names,
    )

    event_writer.open_in(attempt)
    script_settings.read(attempt)
    beat_page.open_in(attempt)
    if "RANK" in os.environ and "--multiprocessing-fork" not in getattr(sys, "orig_argv", ()):
        event_writer.write(
            "rank_started", rank=int(os.environ["RANK"]), world_size=int(os.environ.get("WORLD_SIZE", 0))
        )
    # `exit_marks` first: exit handlers run in reverse order.
    for start in (exit_marks.arm, stack_dumps.arm, thread_names.arm, env_changes.apply, import_hook.arm, parent.arm):
        try:
            start()
        except Exception as error:
            event_writer.write("hook_failed", where=start.__module__, error=repr(error))
