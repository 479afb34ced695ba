"""Runs the survey of one upload in a limited child: `python -P -m holdfast.service.survey_watch FOLDER KEY`.

It holds the lock of the folder, so a survey runs once; waits for a free slot, so only a few run at a time; gives the
child its limits and its time; and records how the child ended, whatever happened to it. It outlives the page and the
server that started it. Reads: FOLDER/.survey/KEY.job.json. Writes: FOLDER/.survey/KEY.json.
"""

import fcntl
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from holdfast.core.artifacts import read_artifact, write_artifact
from holdfast.core.errors import RequestError, error_record
from holdfast.core.records import to_record
from holdfast.core.text import human_seconds
from holdfast.logs.exits import exit_status
from holdfast.runs.observation_wording import exit_text
from holdfast.service.survey_child import SurveyJob, SurveyLimits, SurveyProgress, SurveyResult, too_much

PLACE = ".survey"  # in the upload's folder
_AT_ONCE = 2
_POLL_SECONDS = 0.1
_MOST_TRIES = 3
_PASSED_ON = ("PATH", "HOME", "LANG", "LC_ALL", "PYTHONPATH", "VIRTUAL_ENV", "SYSTEMROOT")
_ONE_THREAD = ("POLARS_MAX_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "RAYON_NUM_THREADS")


def main(folder: Path, key: str) -> int:
    """Survey an upload once; do nothing if another process does it, or if it is done."""
    place = folder / PLACE
    with _held(place / "lock", tries=10) as is_mine:  # a caller of `is_watched` holds it for a moment
        if not is_mine or (place / f"{key}.json").exists():
            return 0
        job = msgspec.convert(read_artifact(place / f"{key}.job.json"), SurveyJob)
        tries = place / f"{key}.tries"
        with tries.open("ab") as file:
            file.write(b".")
        if tries.stat().st_size > _MOST_TRIES:
            found = f"reading it was started {_MOST_TRIES} times and never finished"
            result = _refused(RequestError("the file could not be read", found=found))
        else:
            result = _in_turn(folder, job)
        if place.is_dir():  # the upload may have been deleted meanwhile
            write_artifact(place, f"{key}.json", result)
    return 0


def is_watched(folder: Path) -> bool:
    """Whether a process surveys this upload at the moment."""
    with _held(folder / PLACE / "lock") as is_free:
        return not is_free


def progress_of(folder: Path) -> SurveyProgress | None:
    """How far the survey is; None before it begins."""
    return to_record(read_artifact(folder / PLACE / "work" / "progress.json"), SurveyProgress)


def _in_turn(folder: Path, job: SurveyJob) -> SurveyResult:
    """Survey the upload once one of the slots is free; one user never takes them all."""
    turns = folder.parent / ".turns"
    turns.mkdir(mode=0o700, exist_ok=True)
    while True:
        with _held(turns / f"owner-{job.owner}") as is_owners_turn:
            for number in range(_AT_ONCE if is_owners_turn else 0):
                with _held(turns / str(number)) as is_mine:
                    if is_mine:
                        return _survey(folder, job)
        time.sleep(_POLL_SECONDS)


def _survey(folder: Path, job: SurveyJob) -> SurveyResult:
    work = folder / PLACE / "work"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(mode=0o700)
    try:
        write_artifact(work, "job.json", job)
        code = _run(work, job.limits.seconds)
        result = to_record(read_artifact(work / "result.json"), SurveyResult)
        return result or _refused(_failure(work, code, job.limits))
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _run(work: Path, seconds: float) -> int | None:
    """The exit status of the child; None if its time ran out."""
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


def _failure(work: Path, code: int | None, limits: SurveyLimits) -> RequestError:
    """Why the child left no result, from its exit status and its log."""
    log = (work / "log").read_bytes()[-4000:].decode("utf-8", "replace")
    if code is None or code == -signal.SIGXCPU:
        found = f"not finished within {human_seconds(limits.seconds)}"
        return RequestError("reading the file took too long", found=found, try_next=("save it as CSV or JSON lines",))
    if any(sign in log for sign in ("MemoryError", "memory allocation", "Cannot allocate", "std::bad_alloc")):
        return too_much((log.strip().splitlines() or [""])[-1][:200], limits)
    return RequestError(f"the process that read the file {exit_text(exit_status(code))}")


def _refused(error: RequestError) -> SurveyResult:
    return SurveyResult(state="refused", problem=error_record(error))


@contextmanager
def _held(path: Path, tries: int = 1) -> Iterator[bool]:
    """Hold a lock, which the system frees when its holder dies; gives whether we got it."""
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
        time.sleep(_POLL_SECONDS / 5)
        return False
    return True


if __name__ == "__main__":
    raise SystemExit(main(Path(sys.argv[1]), sys.argv[2]))
