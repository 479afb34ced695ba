"""The Celery app: how a job's id travels to the workers. The message is a hint; the row says who has the job.

Early acknowledgement and a prefetch of one: a message that is lost or comes twice changes nothing. No result backend,
no remote control, no task events: everything worth knowing is in the row and in the run folder.
"""

from celery import Celery
from django.conf import settings

QUEUES = ("any", "cpu", "cuda", "mps")

app = Celery("holdfast")
app.conf.update(
    broker_url=settings.BROKER_URL or "memory://",
    broker_connection_retry_on_startup=True,
    broker_connection_max_retries=None,  # a broker that is away comes back
    task_acks_late=False,
    task_ignore_result=True,
    task_default_queue="any",
    task_serializer="json",
    accept_content=["json"],
    worker_prefetch_multiplier=1,
    worker_enable_remote_control=False,
    worker_hijack_root_logger=False,
    worker_send_task_events=False,
    imports=("holdfast.service.jobs.tasks",),
)
if settings.BROKER_VISIBILITY_SECONDS:  # Redis hands a message out again after this; by default after an hour
    app.conf.broker_transport_options = {"visibility_timeout": settings.BROKER_VISIBILITY_SECONDS}
