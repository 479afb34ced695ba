"""The message broker: a Celery app with one task, which tells workers that a job is waiting.

The message is only a hint; the row in the database says who has the job.

Messages are acknowledged early and prefetched one at a time: a lost or repeated message changes nothing. There is no
result backend, no remote control and there are no task events: the row and the run folder hold everything.
"""

import logging
from collections.abc import Callable

from celery import Celery
from django.conf import settings
from django.db import connections

QUEUES = ("any", "cpu", "cuda", "mps")

_log = logging.getLogger(__name__)
_CONNECT_SECONDS, _ANSWER_SECONDS = 2.0, 5.0

on_hint: Callable[[int], None] | None = None  # set by the worker in this process

app = Celery("holdfast")
app.conf.update(
    broker_url=settings.BROKER_URL or "memory://",
    broker_connection_retry_on_startup=True,
    broker_connection_max_retries=None,  # the broker may come back any time
    task_acks_late=False,
    task_ignore_result=True,
    task_default_queue="any",
    task_serializer="json",
    accept_content=["json"],
    worker_prefetch_multiplier=1,
    worker_enable_remote_control=False,
    worker_hijack_root_logger=False,
    worker_send_task_events=False,
)
if settings.BROKER_VISIBILITY_SECONDS:  # Redis delivers a message again after this; its default is an hour
    app.conf.broker_transport_options = {"visibility_timeout": settings.BROKER_VISIBILITY_SECONDS}


@app.task(name="run_job", ignore_result=True)  # type: ignore[untyped-decorator]  # celery has no types
def run_job(job_id: int) -> None:
    """Claim a waiting job, if there still is one, and stay until its agent has ended; the id is only a hint."""
    if on_hint is None:
        return
    try:
        on_hint(job_id)
    finally:
        connections.close_all()


def announce(job_id: int, device: str = "") -> bool:
    """Send the hint for a job; False when the broker is away, which is no failure: workers also poll the table."""
    if settings.BROKER_URL.startswith("redis"):
        options = {"socket_connect_timeout": _CONNECT_SECONDS, "socket_timeout": _ANSWER_SECONDS}
    else:
        options = {"read_timeout": _ANSWER_SECONDS, "write_timeout": _ANSWER_SECONDS}
    try:
        with app.connection_for_write(connect_timeout=_CONNECT_SECONDS, transport_options=options) as connection:
            connection.ensure_connection(max_retries=1, interval_start=0, interval_step=0, timeout=_ANSWER_SECONDS)
            run_job.apply_async((job_id,), queue=device or "any", connection=connection, retry=False)
    except Exception as error:  # kombu passes on what each transport raises
        _log.warning("job %s: the broker did not accept the message: %r", job_id, error)
        return False
    return True
