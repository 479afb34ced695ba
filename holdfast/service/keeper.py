"""Keeps one claimed job: `python -m holdfast.service.process keeper JOB_ID CLAIM`, a process of its own session.

It outlives the dispatcher or worker that started it. It starts the run's supervisor as its child, renews the lease,
copies what lists show, passes on the wish to stop, and writes the end. SIGTERM saves the run and puts the job back into
the queue. Whoever loses its claim, or cannot renew it in time, ends its run and writes nothing any more.
"""

import os
import signal
import subprocess
import sys
import time
import traceback
import uuid
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal

from django.conf import settings
from django.db import Error as DatabaseError
from django.db import connections

from holdfast.core.artifacts import read_artifact, write_artifact
from holdfast.core.errors import HoldfastError, error_record
from holdfast.core.runfolder import PLAN, REFUSED, REQUEST, RESULT, SUPERVISOR_LOG
from holdfast.runs.detach import start_apart
from holdfast.runs.holder import HELD_BY_OTHER, holder
from holdfast.runs.identity import describe_process, end_process, kill_run
from holdfast.service.home import this_home
from holdfast.service.jobs import leases
from holdfast.service.jobs.copied import read_copied
from holdfast.service.jobs.ends import write_end
from holdfast.service.jobs.environment import run_environment
from holdfast.service.jobs.evidence import read_end
from holdfast.service.jobs.folders import make_folder
from holdfast.service.jobs.models import Job
from holdfast.service.jobs.notices import file_notices
from holdfast.service.leash import Leash, log, now
from holdfast.service.mirror import TURN, Mirror, bring
from holdfast.service.process import command_of
from holdfast.service.storage import StoreError, open_store

Why = Literal["", "stop", "hand back", "lost"]

ORPHAN_SHARE = 0.25  # of a lease, for a run to save whose keeper died: with the half before it, still no whole one
ASKED = "asked.json"  # in the run folder: which request its result answers, by the database's time and no other clock
_TURN_SECONDS, _LOOK_SECONDS, _RENEW_SECONDS = 0.2, 2.0, 5.0
_LEFTOVER_SECONDS = 20.0  # for a supervisor of an earlier claim to save
_MOST_DEATHS, _MOST_KILLS = 3, 20  # of supervisors without a step between: by a fault of their own, by a signal
_REST_SECONDS = 20.0
_STORE_SECONDS, _STORE_AGAIN_SECONDS = 300.0, 10.0  # for a store that does not answer, where the run is here too
_WRITE_SECONDS = 600.0  # for the database to come back; after that the next holder finds in the folder how it ended


def start_keeper(job_id: int, claimed: uuid.UUID) -> "subprocess.Popen[bytes]":
    """Start the keeper of a claim; it lives on when this process ends."""
    folder = this_home().keepers
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return start_apart(command_of("keeper", str(job_id), str(claimed)), folder / f"{job_id}.log")


class Keeper:
    """Looks after one claim."""

    def __init__(self, job_id: int, claimed: uuid.UUID):
        self._job_id, self._claim = job_id, claimed
        self._renew_seconds = min(_RENEW_SECONDS, settings.LEASE_SECONDS / 12)
        self._renewed_at = self._looked_at = float("-inf")
        self._why: Why = ""
        self._attempts: int | None = None
        self._child: subprocess.Popen[bytes] | None = None
        self._run = Job(pk=job_id).folder
        self._leash = Leash(self._run, settings.LEASE_SECONDS)
        self._store = open_store()
        self._mirror: Mirror | None = None

    def keep(self) -> None:
        """Bring the job to its goal, or give it up."""
        signal.signal(signal.SIGTERM, lambda *_: self._ask("hand back"))
        if not self._await_database():
            return
        known = {**describe_process(os.getpid()), "claim": str(self._claim)}
        write_artifact(this_home().keepers, f"{self._job_id}.json", known)
        job: Job = Job.objects.select_related("owner", "dataset").get(pk=self._job_id)
        if job.stop_asked:
            self._release(Job.State.STOPPED, sentence="stopped before it began")
            return
        try:
            self._bring(job)
            if self._why:
                self._give_up()
                return
            make_folder(job)
            self._mirror = Mirror(self._store, job, self._run, log) if self._store else None
        except HoldfastError as error:
            self._refuse(_said(error))
            return
        if not self._ended_before(job):
            self._supervise(job)

    def rest(self) -> None:
        """Hold the claim for a while after a fault: met again and again it would use up all claims within a minute."""
        deadline = time.monotonic() + _REST_SECONDS
        while time.monotonic() < deadline and not self._why:
            time.sleep(_TURN_SECONDS)
            self._turn()

    def _bring(self, job: Job) -> None:
        """Bring what this disk lacks; a store that is away is waited for, but not for ever where the run is here."""
        store, begun = self._store, time.monotonic()
        if store is None:
            return
        self._clear_leftovers()
        while not self._why:
            try:
                self._beside(lambda: bring(store, job, log))
                break
            except StoreError as error:
                log(f"{error.what}: {error.seen}")
            if (self._run / TURN).is_file() and time.monotonic() - begun > _STORE_SECONDS:
                log("going on with what is on this disk")
                break
            self._beside(lambda: time.sleep(_STORE_AGAIN_SECONDS))
        if not self._why:
            self._await_database()  # that may have taken longer than a lease

    def _beside(self, work: Callable[[], object]) -> None:
        """Do something that takes long, and hold the claim meanwhile; what it raises is raised."""
        with ThreadPoolExecutor(1) as threads:
            doing = threads.submit(_closing_connections, work)
            while not doing.done():
                time.sleep(_TURN_SECONDS)
                self._turn()
            doing.result()

    def _ended_before(self, job: Job) -> bool:
        """Whether the run came to its end under an earlier claim that could not write it down."""
        result = read_artifact(self._run / RESULT)
        if result.get("state") == "finished":
            return self._end(job, 0)
        is_of_now = read_artifact(self._run / ASKED).get("queued") == job.queued.isoformat()
        return result.get("state") == "failed" and is_of_now and self._end(job, int(result.get("exit_code", 4)))

    def _supervise(self, job: Job) -> None:
        """Start supervisors until one has brought the run to its end; one that died is followed by another."""
        deaths, furthest = 0, -1
        while not self._why:
            self._clear_leftovers()
            if self._why:
                break
            code = self._run_child(job)
            if self._is_ours() and self._end(job, code):
                return
            if self._leash.has_pulled:
                self._await_database()
            elif code != HELD_BY_OTHER and not self._why:
                step = int(str(read_copied(self._run).get("step") or 0))
                deaths, furthest = (0, step) if step > furthest else (deaths + 1, furthest)
                log(f"the supervisor ended with {code} at step {step}")
                if deaths >= (_MOST_KILLS if code < 0 else _MOST_DEATHS):
                    words = f"the supervisor died {deaths + 1} times without a step between: {_last_line(self._run)}"
                    self._release("failed", sentence=words)
                    return
        self._give_up()

    def _run_child(self, job: Job) -> int:
        """Run a supervisor to its end, and hold the claim meanwhile."""
        for name in (RESULT, REFUSED):  # of an earlier claim
            (self._run / name).unlink(missing_ok=True)
        write_artifact(self._run, ASKED, {"queued": job.queued.isoformat()})  # a result from here on answers this
        whose = (str(self._run), str(job.goal), str(os.getpid()), str(ORPHAN_SHARE * settings.LEASE_SECONDS))
        self._child = start_apart(
            [sys.executable, "-P", "-m", "holdfast.runs.held", *whose],
            self._run / SUPERVISOR_LOG,
            run_environment(job.owner, os.environ),
            this_home().keepers,  # where no folder lies that the name of a model could be taken for
        )
        self._leash.hold(self._child)
        self._pull()  # asked while it was being started
        while self._child.poll() is None:
            time.sleep(_TURN_SECONDS)
            self._turn()
        return self._child.returncode

    def _turn(self) -> None:
        """One look at the row; a database that does not answer is the leash's business."""
        try:
            at = time.monotonic()
            if at - self._renewed_at >= self._renew_seconds and self._why != "lost":
                self._renewed_at = at
                is_coming = self._store and not (self._run / REQUEST).is_file()
                copied = {"phase": "store"} if is_coming else read_copied(self._run)
                if self._renew(**copied):
                    self._tell_trouble(int(str(copied.get("attempts") or 0)))
            elif at - self._looked_at >= min(_LOOK_SECONDS, self._renew_seconds) and not self._why:
                self._looked_at = at
                asked = leases.look(self._job_id, self._claim)
                self._ask("lost" if asked is None else "stop" if asked else "")
        except DatabaseError as error:
            log(f"the database did not answer: {error}")
            connections.close_all()

    def _renew(self, **copied: object) -> bool:
        asked_at = now()
        if not leases.renew(self._job_id, self._claim, **copied):
            self._ask("lost")
            return False
        self._leash.renewed(asked_at)
        return True

    def _tell_trouble(self, attempts: int) -> None:
        """Tell the owner that an attempt failed and another one began."""
        if self._attempts is not None and attempts > max(1, self._attempts):
            file_notices(Job.objects.get(pk=self._job_id), "trouble")
        self._attempts = attempts

    def _ask(self, why: Why) -> None:
        """End the run: with a checkpoint, or at once when it is somebody else's by now."""
        if not why or self._why in ("lost", why):
            return
        log(f"ending the run: {why}")
        self._why = why
        if why == "lost" and self._mirror:
            self._mirror.close()
        self._pull()

    def _is_ours(self) -> bool:
        return self._why != "lost"

    def _pull(self) -> None:
        if self._why and self._child and self._child.poll() is None:
            if self._why == "lost":
                kill_run(self._run, self._child.pid)
            else:
                self._child.send_signal(signal.SIGTERM)

    def _clear_leftovers(self) -> None:
        """End a supervisor that an earlier claim left on this machine; its run goes on from its checkpoint."""
        if found := holder(self._run):
            log(f"ending supervisor {found.pid} of an earlier claim")
            end_process(found, min(_LEFTOVER_SECONDS, settings.LEASE_SECONDS / 4))
        self._turn()

    def _await_database(self) -> bool:
        """While nothing runs: wait until it is known whether the job is still ours."""
        deadline = time.monotonic() + _WRITE_SECONDS
        while time.monotonic() < deadline:
            try:
                return self._renew()
            except DatabaseError as error:
                log(f"the database did not answer: {error}")
                connections.close_all()
                time.sleep(1.0)
        self._ask("lost")
        return False

    def _end(self, job: Job, code: int) -> bool:
        """Write how the run ended; False when it has not ended."""
        result, refused = read_artifact(self._run / RESULT), read_artifact(self._run / REFUSED)
        copied = read_copied(self._run)
        if refused:
            self._refuse(refused)
        elif job.goal == "plan" and code == 0 and read_artifact(self._run / PLAN).get("proof"):
            self._release("planned", **copied)
        elif result.get("state") == "finished":
            self._release("finished", **copied, sentence=str(result.get("sentence", "")))
        elif result.get("state") == "failed" and code == int(result.get("exit_code", 4)):
            self._release("failed", **copied, sentence=str(result.get("sentence", "")))
        elif self._why == "stop" or (result.get("state") == "stopped" and not (self._why or self._leash.has_pulled)):
            self._release("stopped", **copied, sentence=str(result.get("sentence", "") or "stopped as asked"))
        else:
            return False
        return True

    def _refuse(self, said: Mapping[str, object]) -> None:
        home = f"{self._run.parent.parent}/"  # where the service keeps things is nobody's business
        error = {
            name: [str(one).replace(home, "") for one in value]
            if isinstance(value, list)
            else str(value).replace(home, "")
            for name, value in said.items()
        }
        self._release("failed", error=error, sentence=error["what"])

    def _give_up(self) -> None:
        if self._why == "stop":
            self._release("stopped", sentence="stopped as asked")
        elif self._why == "hand back":
            self._write(lambda: leases.hand_back(self._job_id, self._claim))

    def _release(self, state: str, **fields: object) -> None:
        """Write the end, as long as it takes the database to come back; nothing when the claim is gone."""
        self._write(lambda: write_end(self._job_id, self._claim, state, self._run, fields))

    def _write(self, write: Any) -> None:
        if self._mirror:
            self._beside(self._mirror.send_last)
        deadline = time.monotonic() + _WRITE_SECONDS
        while time.monotonic() < deadline:
            try:
                if not write():
                    log("the claim is gone; nothing was written")
                return
            except DatabaseError as error:
                log(f"the end could not be written yet: {error}")
                connections.close_all()
                time.sleep(1.0)


def _closing_connections(work: Callable[[], object]) -> None:
    try:
        work()
    finally:
        connections.close_all()


def _said(error: HoldfastError) -> dict[str, object]:
    return error_record(error)


def _last_line(run: Path) -> str:
    lines = read_end(run / SUPERVISOR_LOG).strip().splitlines()
    return lines[-1][:300] if lines else "it said nothing"


def main(job_id: str, claimed: str) -> None:
    """Keep a claim; whatever goes wrong, the job goes back, and not at once: a full disk needs a while."""
    log(f"keeper {os.getpid()} of job {job_id}, claim {claimed}")
    keeper = Keeper(int(job_id), uuid.UUID(claimed))
    try:
        keeper.keep()
    except Exception:
        log(traceback.format_exc())
        keeper.rest()
        raise SystemExit(1) from None
