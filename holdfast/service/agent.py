"""The agent of one claimed job: `python -m holdfast.service.child_process agent JOB_ID CLAIM`, in its own session.

An agent outlives the dispatcher or worker that started it. It starts the run's supervisor as its child, renews the
lease, copies what the list of runs shows, passes on a request to stop, and writes the end. On SIGTERM the run saves and
the job goes back into the queue.

The rules of the lease, as shares of LEASE_SECONDS since the last renewal that came through:

    1/12   renew (at most every 5 s)
    1/2    the watchdog asks the run to save and stop
    3/4    the watchdog kills the run
    1      another worker may claim the job

So no two machines ever train one job, even when the database or the network is away. Once a claim is lost, the agent
ends its run and writes nothing more: the row's `claim` is a fresh UUID, and every write names the one it belongs to.
"""

import contextlib
import os
import signal
import subprocess
import sys
import threading
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
from holdfast.core.records import Proof, Result, read_record
from holdfast.core.runfolder import REFUSED, REQUEST, RESULT, SUPERVISOR_LOG
from holdfast.runs.detach import start_apart
from holdfast.runs.lease import HELD_BY_OTHER, holder
from holdfast.runs.process_identity import describe_process, end_process, kill_run
from holdfast.runs.state import RunState
from holdfast.service.child_process import command_of
from holdfast.service.home import this_home
from holdfast.service.jobs import leases
from holdfast.service.jobs.evidence_files import read_end
from holdfast.service.jobs.job_folder import make_folder
from holdfast.service.jobs.job_state import read_run, row_fields
from holdfast.service.jobs.job_wording import end_sentence, trouble_text
from holdfast.service.jobs.models import Job, JobState
from holdfast.service.jobs.notices import file_notices
from holdfast.service.jobs.run_environment import run_environment
from holdfast.service.object_store import StoreError, open_store
from holdfast.service.replicator import FENCE, Replicator, fetch_job

StopReason = Literal["", "stop", "hand back", "lost"]

STOP_SHARE, KILL_SHARE = 0.5, 0.75  # of a lease without renewal: the watchdog stops the run, then kills it
# A run whose agent died gets this share of a lease to save. The watchdog died with the agent, so up to half a lease may
# have passed already: half plus a quarter is still less than a whole one.
ORPHAN_SHARE = 0.25
ANSWERS = "asked.json"  # in the run folder: when the request was queued that result.json answers, by the database
_POLL_SECONDS, _STOP_POLL_SECONDS, _RENEW_SECONDS = 0.2, 2.0, 5.0
_PREVIOUS_SECONDS = 20.0  # for the supervisor of an earlier claim to save
# Supervisors that died without a step in between. A signal usually comes from outside (a reboot, the OOM killer), so it
# is forgiven more often than a crash of the supervisor itself.
_MOST_CRASHES, _MOST_KILLS = 3, 20
_BACK_OFF_SECONDS = 20.0
_STORE_SECONDS, _STORE_RETRY_SECONDS = 300.0, 10.0  # wait this long for the store when the run is on this disk too
_WRITE_SECONDS = 600.0  # for the database to come back; later the next holder finds the end in the run folder


def start_agent(job_id: int, claimed: uuid.UUID) -> "subprocess.Popen[bytes]":
    """Start the agent of a claim; it keeps running when this process ends."""
    folder = this_home().agents
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return start_apart(command_of("agent", str(job_id), str(claimed)), folder / f"{job_id}.log")


class Agent:
    """Carries one claim to its end."""

    def __init__(self, job_id: int, claimed: uuid.UUID):
        self._job_id, self._claim = job_id, claimed
        self._renew_seconds = min(_RENEW_SECONDS, settings.LEASE_SECONDS / 12)
        self._renewed_at = self._polled_at = float("-inf")
        self._stopping: StopReason = ""
        self._attempts: int | None = None
        self._child: subprocess.Popen[bytes] | None = None
        self._run = Job(pk=job_id).folder
        self._watchdog = LeaseWatchdog(self._run, settings.LEASE_SECONDS)
        self._store = open_store()
        self._replicator: Replicator | None = None

    def work(self) -> None:
        """Bring the job to its goal, or give it back."""
        signal.signal(signal.SIGTERM, lambda *_: self._stop("hand back"))
        if not self._await_database():
            return
        known = {**describe_process(os.getpid()), "claim": str(self._claim)}
        write_artifact(this_home().agents, f"{self._job_id}.json", known)
        job: Job = Job.objects.select_related("owner", "dataset").get(pk=self._job_id)
        if job.stop_asked:
            self._release(JobState.STOPPED, sentence="stopped before it started")
            return
        try:
            self._fetch(job)
            if self._stopping:
                self._release_unfinished()
                return
            make_folder(job)
            self._replicator = Replicator(self._store, job, self._run, log) if self._store else None
        except HoldfastError as error:
            self._refuse(error_record(error))
            return
        if not self._ended_before(job):
            self._supervise(job)

    def back_off(self) -> None:
        """Hold the claim for a while after a fault: retried at once, the same fault would use up all claims."""
        deadline = time.monotonic() + _BACK_OFF_SECONDS
        while time.monotonic() < deadline and not self._stopping:
            time.sleep(_POLL_SECONDS)
            self._poll()

    def _fetch(self, job: Job) -> None:
        """Copy what this disk lacks from the store; if the run is on this disk too, wait for the store only so long."""
        store, began = self._store, time.monotonic()
        if store is None:
            return
        self._end_previous_supervisor()
        while not self._stopping:
            try:
                self._while_holding(lambda: fetch_job(store, job, log))
                break
            except StoreError as error:
                log(f"{error.what}: {error.found}")
            if (self._run / FENCE).is_file() and time.monotonic() - began > _STORE_SECONDS:
                log("continuing with the copy on this disk")
                break
            self._while_holding(lambda: time.sleep(_STORE_RETRY_SECONDS))
        if not self._stopping:
            self._await_database()  # the download may have taken longer than a lease

    def _while_holding(self, work: Callable[[], object]) -> None:
        """Do something slow in a thread and renew the lease meanwhile; errors of the work are raised here."""
        with ThreadPoolExecutor(1) as threads:
            doing = threads.submit(_closing_connections, work)
            while not doing.done():
                time.sleep(_POLL_SECONDS)
                self._poll()
            doing.result()

    def _ended_before(self, job: Job) -> bool:
        """Whether the run ended under an earlier claim that could not write it down."""
        result = read_record(self._run, Result)
        if result is None:
            return False
        if result.state == "finished":
            return self._end(job, 0)
        is_of_now = read_artifact(self._run / ANSWERS).get("queued") == job.queued.isoformat()
        return result.state == "failed" and is_of_now and self._end(job, result.exit_code)

    def _supervise(self, job: Job) -> None:
        """Start supervisors until one has brought the run to its end; a dead one is replaced."""
        deaths, furthest = 0, -1
        while not self._stopping:
            self._end_previous_supervisor()
            if self._stopping:
                break
            code = self._run_child(job)
            if self._is_ours() and self._end(job, code):
                return
            if self._watchdog.has_fired:
                self._await_database()
            elif code != HELD_BY_OTHER and not self._stopping:
                state = self._read()
                step = state.step if state else 0
                deaths, furthest = (0, step) if step > furthest else (deaths + 1, furthest)
                log(f"the supervisor ended with {code} at step {step}")
                if deaths >= (_MOST_KILLS if code < 0 else _MOST_CRASHES):
                    last = _last_line(self._run)
                    self._release("failed", sentence=f"the supervisor died {deaths + 1} times without progress: {last}")
                    return
        self._release_unfinished()

    def _run_child(self, job: Job) -> int:
        """Run a supervisor to its end and renew the lease meanwhile."""
        for name in (RESULT, REFUSED):  # of an earlier claim
            (self._run / name).unlink(missing_ok=True)
        write_artifact(self._run, ANSWERS, {"queued": job.queued.isoformat()})
        arguments = (str(self._run), str(job.goal), str(os.getpid()), str(ORPHAN_SHARE * settings.LEASE_SECONDS))
        self._child = start_apart(
            [sys.executable, "-P", "-m", "holdfast.runs.agent_child", *arguments],
            self._run / SUPERVISOR_LOG,
            run_environment(job.owner, os.environ),
            this_home().agents,  # no folder in there could be mistaken for the name of a model
        )
        self._watchdog.watch(self._child)
        self._signal_child()  # a stop that was requested while it started
        while self._child.poll() is None:
            time.sleep(_POLL_SECONDS)
            self._poll()
        return self._child.returncode

    def _poll(self) -> None:
        """Renew, or look for a request to stop; when the database is away, the watchdog decides."""
        try:
            at = time.monotonic()
            if at - self._renewed_at >= self._renew_seconds and self._stopping != "lost":
                self._renewed_at = at
                is_fetching = self._store and not (self._run / REQUEST).is_file()
                state = None if is_fetching else self._read()
                if self._renew(**({"phase": "store"} if is_fetching else row_fields(state))) and state:
                    self._notify_trouble(state)
            elif at - self._polled_at >= min(_STOP_POLL_SECONDS, self._renew_seconds) and not self._stopping:
                self._polled_at = at
                asked = leases.stop_asked(self._job_id, self._claim)
                self._stop("lost" if asked is None else "stop" if asked else "")
        except DatabaseError as error:
            log(f"the database did not respond: {error}")
            connections.close_all()

    def _renew(self, **copied: object) -> bool:
        # The time before the query counts: the lease may have been renewed any moment after it.
        asked_at = now()
        if not leases.renew(self._job_id, self._claim, **copied):
            self._stop("lost")
            return False
        self._watchdog.renewed(asked_at)
        return True

    def _notify_trouble(self, state: RunState) -> None:
        """Notify the owner that an attempt failed and the next one has started."""
        attempts = len(state.attempts)
        if self._attempts is not None and attempts > max(1, self._attempts):
            file_notices(Job.objects.get(pk=self._job_id), "trouble", trouble_text(state))
        self._attempts = attempts

    def _stop(self, reason: StopReason) -> None:
        """End the run: with a checkpoint, or at once when the claim is lost."""
        if not reason or self._stopping in ("lost", reason):
            return
        log(f"ending the run: {reason}")
        self._stopping = reason
        if reason == "lost" and self._replicator:
            self._replicator.close()
        self._signal_child()

    def _read(self) -> RunState | None:
        return read_run(self._run, is_supervised=True)

    def _is_ours(self) -> bool:
        return self._stopping != "lost"

    def _signal_child(self) -> None:
        if self._stopping and self._child and self._child.poll() is None:
            if self._stopping == "lost":
                kill_run(self._run, self._child.pid)
            else:
                self._child.send_signal(signal.SIGTERM)

    def _end_previous_supervisor(self) -> None:
        """End a supervisor that an earlier claim left on this machine; the run continues from its checkpoint."""
        if found := holder(self._run):
            log(f"ending supervisor {found.pid} of an earlier claim")
            end_process(found, min(_PREVIOUS_SECONDS, settings.LEASE_SECONDS / 4))
        self._poll()

    def _await_database(self) -> bool:
        """While nothing runs: wait until it is known whether the job is still ours."""
        deadline = time.monotonic() + _WRITE_SECONDS
        while time.monotonic() < deadline:
            try:
                return self._renew()
            except DatabaseError as error:
                log(f"the database did not respond: {error}")
                connections.close_all()
                time.sleep(1.0)
        self._stop("lost")
        return False

    def _end(self, job: Job, code: int) -> bool:
        """Write how the run ended; False when it has not ended."""
        result, refused = read_record(self._run, Result), read_artifact(self._run / REFUSED)
        state = read_run(self._run, is_supervised=False)
        known = {**row_fields(state), "sentence": end_sentence(state) if state else ""}
        ending = result.state if result else ""
        if refused:
            self._refuse(refused)
        elif job.goal == "plan" and code == 0 and read_record(self._run, Proof) is not None:
            self._release("planned", **{**known, "sentence": ""})
        elif ending == "finished" or (ending == "failed" and result and code == result.exit_code):
            self._release(ending, **known)
        elif self._stopping == "stop" or (ending == "stopped" and not (self._stopping or self._watchdog.has_fired)):
            self._release("stopped", **known)
        else:
            return False
        return True

    def _refuse(self, record: Mapping[str, object]) -> None:
        # Users are not told where the service keeps its files.
        error = _without(f"{self._run.parent.parent}/", dict(record))
        self._release("failed", error=error, sentence=error["what"])

    def _release_unfinished(self) -> None:
        if self._stopping == "stop":
            self._release("stopped", sentence="stopped as requested")
        elif self._stopping == "hand back":
            self._write(lambda: leases.hand_back(self._job_id, self._claim))

    def _release(self, state: str, **fields: object) -> None:
        """Write the end, as soon as the database is back; write nothing when the claim is lost."""
        self._write(lambda: leases.end_job(self._job_id, self._claim, state, self._run, fields))

    def _write(self, write: Any) -> None:
        if self._replicator:
            self._while_holding(self._replicator.send_last)
        deadline = time.monotonic() + _WRITE_SECONDS
        while time.monotonic() < deadline:
            try:
                if not write():
                    log("the claim is lost; nothing was written")
                return
            except DatabaseError as error:
                log(f"the end is not written yet: {error}")
                connections.close_all()
                time.sleep(1.0)


class LeaseWatchdog:
    """A thread that ends the run when its lease is not renewed in time.

    The agent's own thread cannot do this: it may be waiting for the very database that is away.
    """

    def __init__(self, run: Path, lease_seconds: float):
        self._run, self._lease_seconds = run, lease_seconds
        self._renewed_at = now()
        self._child: subprocess.Popen[bytes] | None = None
        self.has_fired = False  # for this supervisor: nobody requested that it stops
        threading.Thread(target=self._watch, daemon=True).start()

    def watch(self, child: "subprocess.Popen[bytes]") -> None:
        """Watch a new supervisor."""
        self._child, self.has_fired = child, False

    def renewed(self, asked_at: float) -> None:
        """Note that a renewal requested at this time came through."""
        self._renewed_at = asked_at

    def _watch(self) -> None:
        while True:
            time.sleep(_POLL_SECONDS)
            child, share = self._child, (now() - self._renewed_at) / self._lease_seconds
            if child is None or child.poll() is not None or share < STOP_SHARE:
                continue
            if share >= KILL_SHARE:
                log("lease not renewed: killing the run")
                kill_run(self._run, child.pid)
            elif not self.has_fired:
                self.has_fired = True
                log("lease not renewed for half its time: asking the run to save and stop")
                child.send_signal(signal.SIGTERM)


def now() -> float:
    """Seconds that also pass while the machine sleeps: the lease in the database runs on, too."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.time()


def log(text: str) -> None:
    """Print a line to the agent's log."""
    with contextlib.suppress(OSError):  # a full disk must not end a run
        print(time.strftime("%F %T"), text, flush=True)


def _closing_connections(work: Callable[[], object]) -> None:
    try:
        work()
    finally:
        connections.close_all()


def _without(folder: str, value: Any) -> Any:
    """The same without a folder's path in any text."""
    if isinstance(value, str):
        return value.replace(folder, "")
    if isinstance(value, Mapping):
        return {name: _without(folder, one) for name, one in value.items()}
    return [_without(folder, one) for one in value] if isinstance(value, list) else value


def _last_line(run: Path) -> str:
    lines = read_end(run / SUPERVISOR_LOG).strip().splitlines()
    return lines[-1][:300] if lines else "it printed nothing"


def main(job_id: str, claimed: str) -> None:
    """Work on a claim; after a fault the job goes back, but not at once: a full disk needs a while."""
    log(f"agent {os.getpid()} of job {job_id}, claim {claimed}")
    agent = Agent(int(job_id), uuid.UUID(claimed))
    try:
        agent.work()
    except Exception:
        log(traceback.format_exc())
        agent.back_off()
        raise SystemExit(1) from None
