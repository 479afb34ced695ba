"""Takes jobs from the table and starts their keepers; a child of `serve`.

Holds no truth: a dispatcher that is killed is followed by another, which finds the keepers by their rows. It also puts
back jobs whose lease has run out, beats this machine's row and sends what is due to hooks.
SIGTERM: every run on this machine saves, stops and goes back into the queue.
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
from holdfast.runs.holder import holder
from holdfast.runs.identity import find_process, signal_process
from holdfast.service.home import this_home
from holdfast.service.jobs import datasets, leases, limits, notices, workers
from holdfast.service.jobs.models import Job, Shared, Worker
from holdfast.service.keeper import start_keeper
from holdfast.service.unsent import send_unsent_for_ever

_TURN_SECONDS = 0.5
_NOTICE_SECONDS, _FORGET_SECONDS = 5.0, 3600.0
HAND_BACK_SECONDS = 90.0  # for all runs to save; a run itself is given 60


class Dispatcher:
    """The loop of one worker without a broker."""

    def __init__(self, worker: Worker):
        self._worker = worker
        self._keepers: dict[tuple[int, uuid.UUID], subprocess.Popen[bytes]] = {}
        self._done: dict[str, float] = {}
        self._is_leaving = False
        self._claiming = threading.Lock()

    def run(self) -> None:
        """Turn until told to leave."""
        signal.signal(signal.SIGTERM, self._leave)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        parent = os.getppid()
        send_beside()
        while not self._is_leaving:
            if os.getppid() != parent:  # killed; the keepers live on and are found by the next one
                return
            self.turn_safely()
            time.sleep(_TURN_SECONDS)
        self.hand_back()

    def turn_safely(self) -> None:
        """Look once at everything; what fails, such as a full disk, is told and tried again at the next turn."""
        try:
            self.turn()
        except DatabaseError as error:
            print(f"the database did not answer: {error}", flush=True)
            connections.close_all()
        except Exception:
            with contextlib.suppress(OSError):  # there may be no room for words either
                traceback.print_exc()

    def turn(self) -> None:
        """Look once at everything."""
        if self._is_due("beat", workers.BEAT_SECONDS):
            workers.beat(self._worker)
        if self._is_due("reap", settings.LEASE_SECONDS / 6):
            for job_id in leases.requeue_lost():
                print(f"job {job_id}: its holder is gone; it waits again", flush=True)
        if self._is_due("hold", settings.LEASE_SECONDS / 12):
            self._hold_for_starting()
        self._reap()
        self._claim_free()

    def _hold_for_starting(self) -> None:
        """Renew the claims of keepers that have not come up yet: on a busy machine that may outlast a lease."""
        for (job_id, claimed), keeper in list(self._keepers.items()):
            known = read_artifact(this_home().keepers / f"{job_id}.json")
            if keeper.poll() is None and known.get("claim") != str(claimed):
                leases.renew(job_id, claimed)

    def _claim_free(self) -> None:
        while self._claim(leases.claimable(self._worker)):
            pass

    def _claim(self, waiting: Shared, why: str = "") -> tuple[int, uuid.UUID] | None:
        """Take the next of these jobs and start its keeper, where there is room; the log says why."""
        with self._claiming:
            if self._is_leaving or self._worker.slots <= len(leases.running_on(self._worker)):
                return None
            taken = leases.claim_next(self._worker, waiting)
            if taken is not None:
                try:
                    self._keepers[taken] = start_keeper(*taken)
                except OSError:  # no memory or no disk for it: others may have them
                    leases.hand_back(*taken)
                    raise
                print(f"job {taken[0]}: taken{why}", flush=True)
            return taken

    def hand_back(self) -> None:
        """Ask every run on this machine to save and wait for a later start; see that it is done."""
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
            time.sleep(_TURN_SECONDS)

    def _reap(self) -> None:
        """Put back at once what a dead keeper of ours still held, once nothing trains on it any more."""
        for (job_id, claimed), keeper in list(self._keepers.items()):
            if keeper.poll() is None:
                continue
            if give_back_dead(job_id, claimed):
                del self._keepers[job_id, claimed]

    def _is_due(self, what: str, seconds: float) -> bool:
        now = time.monotonic()
        if now - self._done.get(what, float("-inf")) < seconds:
            return False
        self._done[what] = now
        return True

    def _leave(self, *_: object) -> None:
        self._is_leaving = True


def give_back_dead(job_id: int, claimed: uuid.UUID) -> bool:
    """Put a job back whose keeper is dead; False while a supervisor of it still lives on this machine."""
    if leases.look(job_id, claimed) is None:
        return True
    if holder(Job(pk=job_id).folder):
        return False
    if leases.lose(job_id, claimed):
        print(f"job {job_id}: its keeper died; it waits again", flush=True)
    return True


def hand_back_all(worker: Worker, asked: set[int]) -> int:
    """Ask the keepers of this machine to hand back their jobs, each once; how many still hold one."""
    waiting = 0
    for job_id, claimed in leases.running_on(worker):
        keeper = find_process(read_artifact(this_home().keepers / f"{job_id}.json"))
        if keeper is None:
            waiting += 0 if give_back_dead(job_id, claimed) else 1
            continue
        waiting += 1
        if job_id not in asked:
            asked.add(job_id)
            print(f"job {job_id}: asked to save and wait", flush=True)
            signal_process(keeper, signal.SIGTERM)
    return waiting


def send_beside() -> None:
    """Send to hooks and to the store, each in a thread of its own."""
    for send in (send_notices, send_unsent_for_ever):
        threading.Thread(target=send, daemon=True).start()


def send_notices() -> None:
    """Send what is due to hooks and take up lost surveys, for ever; a dead hook holds up nothing else."""
    forgotten_at = float("-inf")
    while True:
        try:
            notices.send_due()
            datasets.settle_all()
            if time.monotonic() - forgotten_at > _FORGET_SECONDS:
                forgotten_at = time.monotonic()
                limits.forget_old()
        except Exception as error:  # whatever a hook or the database does, the next turn tries again
            print(f"notices could not be sent: {error!r}", flush=True)
        connections.close_all()
        time.sleep(_NOTICE_SECONDS)


def main() -> None:
    """Register this machine and take jobs."""
    # Beside a broker this machine may have a `holdfast worker` too, whose runs are not ours to hand back.
    name = f"{socket.gethostname()}-serve" if settings.BROKER_URL else ""
    worker = workers.register_patiently(settings.RUNS_AT_ONCE, name)
    workers.check_up(worker)
    Dispatcher(worker).run()
