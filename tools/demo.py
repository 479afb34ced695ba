"""`make demo`: trains a real model for a minute, crashes it halfway, and shows the report and a prediction.

The crash is a SIGSEGV that this script sends to the training process. Holdfast is not warned.
"""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

from holdfast.core.event_log import read_events
from holdfast.core.events import StepDone, TrainingStarted

HERE = Path(__file__).parents[1]
DATA = HERE / "examples" / "bank_questions.csv"
QUESTIONS = ("My card was stolen on the train!", "how many dollars do I get for a euro today?")


def main() -> int:
    """Train, crash the training, wait until it finishes, and show the result."""
    run = _free_folder(HERE / "runs")
    holdfast = [sys.executable, "-m", "holdfast"]
    _say(f"training on {DATA.relative_to(HERE)}; halfway, the training process gets a segmentation fault, on purpose")
    begun = time.monotonic()
    with subprocess.Popen([*holdfast, "train", str(DATA.relative_to(HERE)), "--out", str(run)], cwd=HERE) as training:
        threading.Thread(target=_crash_half_way, args=(run,), daemon=True).start()
        code = training.wait()
    if code:
        return code
    attempts = sorted((run / "attempts").iterdir())
    taken = f"{time.monotonic() - begun:.0f} s and {len(attempts)} attempts"
    _say(f"the run took {taken}; only the steps after the last checkpoint were repeated")
    for command in (["report", str(run)], *(["predict", str(run), question] for question in QUESTIONS)):
        shown = " ".join(f'"{part}"' if " " in part else part for part in command).replace(str(HERE) + "/", "")
        _say(f"holdfast {shown}")
        if code := subprocess.call([*holdfast, *command], cwd=HERE):
            return code
    return 0


def _crash_half_way(run: Path) -> None:
    """Wait until half of the steps are done, then send a segmentation fault to the training process."""
    attempt = run / "attempts" / "01"
    while True:
        time.sleep(0.02)
        step, steps = _progress(attempt / "events.jsonl")
        if steps and step >= steps / 2:
            break
    pid = json.loads((attempt / "child.json").read_text())["pid"]
    os.kill(pid, signal.SIGSEGV)


def _progress(events: Path) -> tuple[int, int]:
    step, steps = 0, 0
    for event in read_events(events):
        if isinstance(event, StepDone):
            step = event.step
        if isinstance(event, TrainingStarted):
            steps = event.steps
    return step, steps


def _free_folder(parent: Path) -> Path:
    number = 1
    while (parent / f"demo-{number}").exists():
        number += 1
    return parent / f"demo-{number}"


def _say(text: str) -> None:
    print(f"\n--- {text}", flush=True)


if __name__ == "__main__":
    raise SystemExit(main())
