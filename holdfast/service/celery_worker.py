"""A worker with a broker: Celery delivers hints, the table says which jobs wait, and agents do the work.

It is a dispatcher that claims on messages. Jobs that have waited for a while, because their message was lost or the
broker is away, it claims without one.
"""

import fcntl
import os
import socket
import threading
import time
from collections.abc import Callable
from datetime import timedelta

from celery import signals
from django.conf import settings
from django.db import connections
from django.db.models.functions import Now

from holdfast.core.errors import RequestError
from holdfast.service import broker
from holdfast.service.dispatcher import Dispatcher, start_senders
from holdfast.service.home import this_home
from holdfast.service.jobs import leases, workers
from holdfast.service.jobs.models import Worker
from holdfast.service.object_store import require_store

_STALE_SECONDS = 15.0  # in the queue; after that no message is waited for
_TICK_SECONDS = 1.0


def work(*, slots: int, queues: tuple[str, ...], name: str, say: Callable[[str], None]) -> None:
    """Claim jobs until told to stop."""
    unknown = sorted(set(queues) - set(broker.QUEUES))
    if unknown:
        raise RequestError(f"there is no queue {unknown[0]!r}", found=f"queues: {', '.join(broker.QUEUES)}")
    require_store(say)
    name = name or socket.gethostname()
    lock = _lock_name(name)
    try:
        worker = workers.register_patiently(slots, name, say)
        checking = workers.check_up(worker)
        if not queues:
            checking.join()  # the devices it finds decide which queues to listen to
        _CeleryWorker(worker, queues or ("any", *worker.devices), say).run()
    finally:
        os.close(lock)


class _CeleryWorker(Dispatcher):
    """Claims on hints; otherwise like the dispatcher."""

    def __init__(self, worker: Worker, queues: tuple[str, ...], say: Callable[[str], None]):
        super().__init__(worker)
        self._queues, self._say = queues, say
        self._has_left = threading.Event()

    def run(self) -> None:
        """Listen for hints; tick in a thread meanwhile."""
        broker.on_hint = self._claim_on_hint
        signals.worker_shutting_down.connect(self._leave, weak=False)
        signals.worker_ready.connect(lambda **_: self._say(f"[ok] listening to {', '.join(self._queues)}"), weak=False)
        ticking = threading.Thread(target=self._tick_until_left)
        ticking.start()
        start_senders()
        self._say(f"[ok] worker {self._worker.name}, {self._worker.slots} at a time; Ctrl-C hands its runs back")
        at_once = self._worker.slots + settings.PLANS_AT_ONCE
        options = ["--pool=threads", f"--concurrency={at_once}", f"--queues={','.join(self._queues)}"]
        quiet = ["--without-gossip", "--without-mingle", "--without-heartbeat", "--loglevel=WARNING"]
        try:
            broker.app.worker_main(["worker", f"--hostname=holdfast-{os.getpid()}@%h", *options, *quiet])
        finally:
            self._is_leaving = True
            ticking.join()

    def _tick_until_left(self) -> None:
        while not self._is_leaving:
            self.tick_safely()
            time.sleep(_TICK_SECONDS)
        self._say("     saving the runs; they go back into the queue")
        try:
            self.hand_back()
        finally:
            self._has_left.set()
            connections.close_all()

    def _claim_on_hint(self, job_id: int) -> None:
        """Claim the next waiting job, and stay until its agent has ended: Celery counts this as a busy slot."""
        if self._is_leaving:
            return
        taken = self._claim(leases.claimable(self._worker), f" on the message for job {job_id}")
        while taken in self._agents and not self._has_left.wait(_TICK_SECONDS / 2):
            pass

    def _claim_free(self) -> None:
        stale = leases.claimable(self._worker).filter(queued__lt=Now() - timedelta(seconds=_STALE_SECONDS))
        while self._claim(stale, " without a message"):
            pass

    def _leave(self, *_: object, **__: object) -> None:
        self._is_leaving = True


def _lock_name(name: str) -> int:
    home = this_home()
    home.make()
    path = home.folder / f"worker-{name.replace(os.sep, '_')}.lock"
    lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(lock)
        raise RequestError(
            f"a worker named {name} is already running here", try_next=(f"holdfast worker --name {name}-2",)
        ) from None
    return lock
