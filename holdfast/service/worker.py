"""A worker of the service: Celery brings it hints, the table says what there is, keepers do the work.

It is a dispatcher whose claims come from messages; what was queued for a while without being taken, because its message
was lost or the broker is away, it takes by itself.
"""

import fcntl
import os
import socket
import threading
import time
from collections.abc import Callable
from datetime import timedelta

from celery import signals
from django.db import connections
from django.db.models.functions import Now

from holdfast.core.errors import RequestError
from holdfast.service.celery import QUEUES, app
from holdfast.service.dispatcher import Dispatcher, send_beside
from holdfast.service.home import this_home
from holdfast.service.jobs import leases, tasks, workers
from holdfast.service.jobs.models import Worker
from holdfast.service.storage import require_store

_STALE_SECONDS = 15.0  # in the queue, after which no message is waited for
_TURN_SECONDS = 1.0


def work(*, slots: int, queues: tuple[str, ...], name: str, say: Callable[[str], None]) -> None:
    """Take jobs until told to stop."""
    unknown = sorted(set(queues) - set(QUEUES))
    if unknown:
        raise RequestError(f"there is no queue {unknown[0]!r}", seen=f"queues: {', '.join(QUEUES)}")
    require_store(say)
    name = name or socket.gethostname()
    lock = _only_one(name)
    try:
        worker = workers.register_patiently(slots, name, say)
        checking = workers.check_up(worker)
        if not queues:
            checking.join()  # which devices there are decides where to listen
        _Worker(worker, queues or ("any", *worker.devices), say).run()
    finally:
        os.close(lock)


class _Worker(Dispatcher):
    """Claims on hints; otherwise as the dispatcher."""

    def __init__(self, worker: Worker, queues: tuple[str, ...], say: Callable[[str], None]):
        super().__init__(worker)
        self._queues, self._say = queues, say
        self._has_left = threading.Event()

    def run(self) -> None:
        """Listen for hints, and turn beside that."""
        tasks.on_hint = self._take
        signals.worker_shutting_down.connect(self._leave, weak=False)
        signals.worker_ready.connect(lambda **_: self._say(f"[ok] listening to {', '.join(self._queues)}"), weak=False)
        turning = threading.Thread(target=self._turn_until_left)
        turning.start()
        send_beside()
        self._say(f"[ok] worker {self._worker.name}, {self._worker.slots} at a time; Ctrl-C gives its runs back")
        options = ["--pool=threads", f"--concurrency={self._worker.slots}", f"--queues={','.join(self._queues)}"]
        quiet = ["--without-gossip", "--without-mingle", "--without-heartbeat", "--loglevel=WARNING"]
        try:
            app.worker_main(["worker", f"--hostname=holdfast-{os.getpid()}@%h", *options, *quiet])
        finally:
            self._is_leaving = True
            turning.join()

    def _turn_until_left(self) -> None:
        while not self._is_leaving:
            self.turn_safely()
            time.sleep(_TURN_SECONDS)
        self._say("     runs save and go back into the queue")
        try:
            self.hand_back()
        finally:
            self._has_left.set()
            connections.close_all()

    def _take(self, job_id: int) -> None:
        """Answer a hint: take the next job that waits, and stay until its keeper has ended."""
        if self._is_leaving:
            return
        taken = self._claim(leases.claimable(self._worker), f" at the message of job {job_id}")
        while taken in self._keepers and not self._has_left.wait(_TURN_SECONDS / 2):
            pass

    def _claim_free(self) -> None:
        stale = leases.claimable(self._worker).filter(queued__lt=Now() - timedelta(seconds=_STALE_SECONDS))
        while self._claim(stale, " from the table, where it had waited"):
            pass

    def _leave(self, *_: object, **__: object) -> None:
        self._is_leaving = True


def _only_one(name: str) -> int:
    home = this_home()
    home.make()
    path = home.folder / f"worker-{name.replace(os.sep, '_')}.lock"
    lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(lock)
        raise RequestError(
            f"a worker named {name} already runs here", try_next=(f"holdfast worker --name {name}-2",)
        ) from None
    return lock
