"""Claims waiting jobs and starts their agents; a child of `serve`.

A dispatcher holds no state of its own: if it is killed, the next one finds the agents through the rows of their jobs.
It also requeues jobs whose lease has expired, sends this machine's heartbeat, and sends what is due to hooks.
On SIGTERM every run on this machine saves, stops and goes back into the queue.
"""

import contextlib
import os
import signal
import socket
import subprocess
import threading
import time
import traceback
import uuid

from django.conf import settings
from django.db import Error as DatabaseError
from django.db import connections

from holdfast.core.artifacts import read_artifact
from holdfast.core.text import plural
from holdfast.runs.lease import holder
from holdfast.runs.process_identity import find_process, signal_process
from holdfast.service.agent import start_agent
from holdfast.service.home import this_home
from holdfast.service.jobs import datasets, leases, limits, notices, workers
from holdfast.service.jobs.models import Job, Shared, Worker
from holdfast.service.outbox import send_outbox_forever

_TICK_SECONDS = 0.5
_NOTICE_SECONDS, _FORGET_SECONDS = 5.0, 3600.0
HAND_BACK_SECONDS = 90.0  # for all runs to save; one run is given 60


class Dispatcher:
    """The main loop of a worker without a broker."""

    def __init__(self, worker: Worker):
        self._worker = worker
        self._agents: dict[tuple[int, uuid.UUID], subprocess.Popen[bytes]] = {}
        self._done: dict[str, float] = {}
        self._is_leaving = False
        self._claiming = threading.Lock()

    def run(self) -> None:
        """Work until SIGTERM."""
        signal.signal(signal.SIGTERM, self._leave)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        parent = os.getppid()
        start_senders()
        while not self._is_leaving:
            if os.getppid() != parent:  # `serve` was killed; the agents live on and the next dispatcher finds them
                return
            self.tick_safely()
            time.sleep(_TICK_SECONDS)
        self.hand_back()

    def tick_safely(self) -> None:
        """Do everything that is due; a failure, such as a full disk, is logged and tried again at the next tick."""
        try:
            self.tick()
        except DatabaseError as error:
            print(f"the database did not respond: {error}", flush=True)
            connections.close_all()
        except Exception:
            with contextlib.suppress(OSError):  # the log may be on the full disk
                traceback.print_exc()

    def tick(self) -> None:
        """Do everything that is due."""
        if self._is_due("heartbeat", workers.BEAT_SECONDS):
            workers.beat(self._worker)
        if self._is_due("requeue", settings.LEASE_SECONDS / 6):
            for job_id in leases.requeue_lost():
                print(f"job {job_id}: lease expired; queued again", flush=True)
            if late := leases.stop_overdue():
                print(f"{plural(late, 'job')} reached the time limit; saving and stopping", flush=True)
        if self._is_due("hold", settings.LEASE_SECONDS / 12):
            self._hold_for_starting()
        self._reap()
        self._claim_free()

    def _hold_for_starting(self) -> None:
        """Renew the leases of agents that are still starting: on a busy machine that can outlast a lease."""
        for (job_id, claimed), agent in list(self._agents.items()):
            known = read_artifact(this_home().agents / f"{job_id}.json")
            if agent.poll() is None and known.get("claim") != str(claimed):
                leases.renew(job_id, claimed)

    def _claim_free(self) -> None:
        while self._claim(leases.claimable(self._worker)):
            pass

    def _claim(self, waiting: Shared, why: str = "") -> tuple[int, uuid.UUID] | None:
        """Claim the next of these jobs and start its agent, if a slot is free; the log says why."""
        with self._claiming:
            goals = leases.free_goals(self._worker)
            if self._is_leaving or not goals:
                return None
            taken = leases.claim_next(self._worker, waiting.filter(goal__in=goals))
            if taken is not None:
                try:
                    self._agents[taken] = start_agent(*taken)
                except OSError:  # no memory or disk for it here; another machine may have both
                    leases.hand_back(*taken)
                    raise
                print(f"job {taken[0]}: claimed{why}", flush=True)
            return taken

    def hand_back(self) -> None:
        """Ask every run on this machine to save and go back into the queue, and wait until they have."""
        deadline = time.monotonic() + HAND_BACK_SECONDS
        asked: set[int] = set()
        while time.monotonic() < deadline:
            try:
                waiting = hand_back_all(self._worker, asked)
                self._reap()
            except DatabaseError:
                connections.close_all()
                waiting = -1
            if waiting == 0:
                return
            time.sleep(_TICK_SECONDS)

    def _reap(self) -> None:
        """Requeue the jobs of dead agents of ours, once nothing trains on them any more."""
        for (job_id, claimed), agent in list(self._agents.items()):
            if agent.poll() is None:
                continue
            if requeue_dead(job_id, claimed):
                del self._agents[job_id, claimed]

    def _is_due(self, what: str, seconds: float) -> bool:
        now = time.monotonic()
        if now - self._done.get(what, float("-inf")) < seconds:
            return False
        self._done[what] = now
        return True

    def _leave(self, *_: object) -> None:
        self._is_leaving = True


def requeue_dead(job_id: int, claimed: uuid.UUID) -> bool:
    """Requeue a job whose agent is dead; False while its supervisor still lives on this machine."""
    if leases.stop_asked(job_id, claimed) is None:
        return True
    if holder(Job(pk=job_id).folder):
        return False
    if leases.lose(job_id, claimed):
        print(f"job {job_id}: its agent died; queued again", flush=True)
    return True


def hand_back_all(worker: Worker, asked: set[int]) -> int:
    """Ask each agent of this machine once to hand back its job; return how many still hold one."""
    waiting = 0
    for job_id, claimed in leases.running_on(worker):
        agent = find_process(read_artifact(this_home().agents / f"{job_id}.json"))
        if agent is None:
            waiting += 0 if requeue_dead(job_id, claimed) else 1
            continue
        waiting += 1
        if job_id not in asked:
            asked.add(job_id)
            print(f"job {job_id}: asked to save and stop", flush=True)
            signal_process(agent, signal.SIGTERM)
    return waiting


def start_senders() -> None:
    """Start the threads that send to hooks and to the object store."""
    for send in (send_notices, send_outbox_forever):
        threading.Thread(target=send, daemon=True).start()


def send_notices() -> None:
    """Send what is due to hooks and resume lost surveys, forever; a dead hook delays nothing else."""
    forgotten_at = float("-inf")
    while True:
        try:
            notices.send_due()
            datasets.settle_all()
            if time.monotonic() - forgotten_at > _FORGET_SECONDS:
                forgotten_at = time.monotonic()
                limits.forget_old()
        except Exception as error:  # whatever a hook or the database does, try again
            print(f"notices could not be sent: {error!r}", flush=True)
        connections.close_all()
        time.sleep(_NOTICE_SECONDS)


def main() -> None:
    """Register this machine and claim jobs."""
    # With a broker this machine may have a `holdfast worker` too, whose runs are not ours to hand back.
    name = f"{socket.gethostname()}-serve" if settings.BROKER_URL else ""
    worker = workers.register_patiently(settings.RUNS_AT_ONCE, name)
    workers.check_up(worker)
    Dispatcher(worker).run()
