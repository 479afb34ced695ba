"""Watches over the survey of one upload: `python -P -m holdfast.service.survey_watch FOLDER KEY`.

It holds the folder's lock, so that a survey runs once; waits for a free place, so that few run at a time; gives the
child its limits and its time; and writes down in words how it ended, whatever happened to it. It outlives the page
and the server that started it. Reads: FOLDER/.survey/KEY.job.json. Leaves: FOLDER/.survey/KEY.json.
"""

import fcntl
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from holdfast.core.artifacts import read_artifact, write_artifact
from holdfast.core.records import to_record
from holdfast.core.text import human_seconds
from holdfast.logs.exits import exit_words
from holdfast.service.survey_child import SurveyProgress, too_much

PLACE = ".survey"  # in the upload's folder
_AT_ONCE = 2
_LOOK_EVERY_SECONDS = 0.1
_MOST_TRIES = 3
_PASSED_ON = ("PATH", "HOME", "LANG", "LC_ALL", "PYTHONPATH", "VIRTUAL_ENV", "SYSTEMROOT")
_ONE_THREAD = ("POLARS_MAX_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "RAYON_NUM_THREADS")


def main(folder: Path, key: str) -> int:
    """Survey an upload once; nothing is done where another does it, or where it is done."""
    place = folder / PLACE
    with _held(place / "lock", tries=10) as is_mine:  # who only asks whether it is held has it for a moment
        if not is_mine or (place / f"{key}.json").exists():
            return 0
        job = read_artifact(place / f"{key}.job.json")
        tries = int(read_artifact(place / f"{key}.tries.json").get("tries", 0)) + 1
        write_artifact(place, f"{key}.tries.json", {"tries": tries})
        if tries > _MOST_TRIES:
            said = {"what": "the file could not be read", "seen": f"it was begun {_MOST_TRIES} times and never ended"}
            found: dict[str, Any] = {"state": "refused", "facts": {}, "preview": {}, "problem": said}
        else:
            found = _in_turn(folder, job)
        if place.is_dir():  # the upload may have been deleted meanwhile
            write_artifact(place, f"{key}.json", found)
    return 0


def is_watched(folder: Path) -> bool:
    """Say whether somebody surveys this upload at the moment."""
    with _held(folder / PLACE / "lock") as is_free:
        return not is_free


def progress_of(folder: Path) -> SurveyProgress | None:
    """How far the survey is; None before it begins."""
    return to_record(read_artifact(folder / PLACE / "work" / "progress.json"), SurveyProgress)


def _in_turn(folder: Path, job: Mapping[str, Any]) -> dict[str, Any]:
    turns = folder.parent / ".turns"
    turns.mkdir(mode=0o700, exist_ok=True)
    while True:
        for number in range(_AT_ONCE):
            with _held(turns / str(number)) as is_mine:
                if is_mine:
                    return _survey(folder, job)
        time.sleep(_LOOK_EVERY_SECONDS)


def _survey(folder: Path, job: Mapping[str, Any]) -> dict[str, Any]:
    work = folder / PLACE / "work"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(mode=0o700)
    try:
        write_artifact(work, "job.json", job)
        code = _run(work, float(job["limits"]["seconds"]))
        return read_artifact(work / "result.json") or _died(work, code, job["limits"])
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _run(work: Path, seconds: float) -> int | None:
    """The exit status of the child; None where its time ran out."""
    passed = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
    with (work / "log").open("wb") as log:
        child = subprocess.Popen(
            [sys.executable, "-P", "-m", "holdfast.service.survey_child", str(work)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            cwd=work,
            env={**passed, **dict.fromkeys(_ONE_THREAD, "1"), "TMPDIR": str(work), "MALLOC_ARENA_MAX": "2"},
        )
    try:
        return child.wait(seconds)
    except subprocess.TimeoutExpired:
        return None
    finally:
        if child.poll() is None:
            child.kill()
            child.wait()


def _died(work: Path, code: int | None, limits: Mapping[str, int]) -> dict[str, Any]:
    log = (work / "log").read_bytes()[-4000:].decode("utf-8", "replace")
    words = exit_words(str(code)) or f"code {code}"
    if code is None or "SIGXCPU" in words:
        seen = f"it was not read within {human_seconds(limits['seconds'])}"
        problem: dict[str, object] = {
            "what": "reading the file took too long", "seen": seen, "try_next": ["save it as CSV or JSON lines"],
        }  # fmt: skip
    elif any(word in log for word in ("MemoryError", "memory allocation", "Cannot allocate", "std::bad_alloc")):
        problem = too_much((log.strip().splitlines() or [""])[-1][:200], limits)
    else:
        problem = {"what": f"the process that read the file ended with {words}", "seen": "", "try_next": []}
    return {"state": "refused", "facts": {}, "preview": {}, "problem": problem}


@contextmanager
def _held(path: Path, tries: int = 1) -> Iterator[bool]:
    """Hold a lock that the death of its holder frees; says whether it is ours."""
    try:
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except FileNotFoundError:  # the folder is gone
        yield False
        return
    try:
        yield any(_lock(file) for _ in range(tries))
    finally:
        os.close(file)


def _lock(file: int) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        time.sleep(_LOOK_EVERY_SECONDS / 5)
        return False
    return True


if __name__ == "__main__":
    raise SystemExit(main(Path(sys.argv[1]), sys.argv[2]))
