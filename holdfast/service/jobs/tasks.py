"""The one Celery task, and how it is sent."""

import logging
from collections.abc import Callable

from django.conf import settings
from django.db import connections

from holdfast.service.celery import app

_log = logging.getLogger(__name__)
_CONNECT_SECONDS, _ANSWER_SECONDS = 2.0, 5.0

on_hint: Callable[[int], None] | None = None  # set by the worker of this process


@app.task(name="run_job", ignore_result=True)  # type: ignore[untyped-decorator]  # celery has no types
def run_job(job_id: int) -> None:
    """Take a job, if one still waits, and see its keeper to its end. The id says only that there is something to do."""
    if on_hint is None:
        return
    try:
        on_hint(job_id)
    finally:
        connections.close_all()


def announce(job_id: int, device: str = "") -> bool:
    """Tell the workers of a job; a broker that is away is no reason to fail: workers look at the table too."""
    if settings.BROKER_URL.startswith("redis"):
        options = {"socket_connect_timeout": _CONNECT_SECONDS, "socket_timeout": _ANSWER_SECONDS}
    else:
        options = {"read_timeout": _ANSWER_SECONDS, "write_timeout": _ANSWER_SECONDS}
    try:
        with app.connection_for_write(connect_timeout=_CONNECT_SECONDS, transport_options=options) as connection:
            connection.ensure_connection(max_retries=1, interval_start=0, interval_step=0, timeout=_ANSWER_SECONDS)
            run_job.apply_async((job_id,), queue=device or "any", connection=connection, retry=False)
    except Exception as error:  # kombu passes on what each transport raises
        _log.warning("job %s: the broker did not take the message: %r", job_id, error)
        return False
    return True
