"""A job queue's worker process died during a task.

What you see: "WorkerLostError: Worker exited prematurely: signal 11 (SIGSEGV)" or "signal 9 (SIGKILL)"; with
`--pool=solo` there is no message: the whole worker is gone and the task stays pending.
Why: Celery and RQ fork a process per worker. Native libraries that have started threads do not survive a fork, and a
task that uses too much memory is killed. The queue only sees that its child is gone.
What we do: start each job as a separate process from a thread pool, and never fork after torch was loaded.
"""

from holdfast.core.facts import MachineFacts
from holdfast.core.plan import Plan, Remedy
from holdfast.hazards import Hazard, Invited, proves, seen, suggests

_THREADS = Remedy(
    "run tasks in threads and start the training as a separate process",
    command="celery -A app worker --pool=threads",
    cost="none for tasks that only start and watch a run",
)


def invited_by(facts: MachineFacts, plan: Plan) -> Invited | None:
    """Say why this machine and plan invite the hazard; None when they do not."""
    if "celery" in facts.distributions and "torch" in facts.distributions and facts.os != "windows":
        return Invited("Celery's default pool forks; a task that uses torch then hangs or dies", "note", (_THREADS,))
    return None


HAZARD = Hazard(
    slug="celery-worker-lost",
    title="the job queue's worker process died during a task",
    kind="crash",
    invited_by=invited_by,
    signs=(
        proves("log", r"WorkerLostError"),
        proves("log", r"Worker exited prematurely: (?:signal|exitcode)"),
        proves("log", r"Process ['\"](?:Fork)?(?:Pool)?Worker-\d+['\"] pid:\d+ exited with ['\"](?:signal|exitcode)"),
        proves("frame", r"mark_as_worker_lost"),
        suggests("log", r"Work-horse (?:process )?(?:was )?terminated unexpectedly"),
        suggests("log", r"Timed out waiting for UP message from <\w*Process"),
        suggests("log", r"Worker with PID \d+ exited unexpectedly \(code -?\d+\)", also=(seen("log", r"dramatiq"),)),
    ),
    remedies=(
        _THREADS,
        Remedy(
            "run one task at a time in the worker's own process",
            command="celery -A app worker --pool=solo",
            cost="one task at a time",
        ),
        Remedy(
            "import torch and load the model inside the task, so that nothing is loaded before the fork",
            command="celery -A app worker --concurrency=1 --max-tasks-per-child=1",
            cost="the model is loaded for every task",
        ),
        Remedy(
            "for signal 9: give the worker more memory, or use fewer processes",
            command="celery -A app worker --concurrency=1",
        ),
    ),
    sources=(
        "celery/celery#4113",
        "celery/celery#2964",
        "celery/celery#7007",
        "huggingface/transformers#7516",
        "rq/django-rq#574",
    ),
    matches=(
        "billiard.exceptions.WorkerLostError: Worker exited prematurely: signal 11 (SIGSEGV) Job: 1.",
        "[2021-08-25 23:24:53,573: ERROR/MainProcess] Process 'ForkPoolWorker-3' pid:27 exited with 'signal 9 (SIGKILL)'",
        "multiprocessing: Process 'PoolWorker-1' pid:11 exited with 'signal 11 (SIGSEGV)'",
        '[2024-04-09 10:00:00,000: ERROR/MainProcess] Process "ForkPoolWorker-11" pid:33013 exited with "signal 11 (SIGSEGV)"',
        "WorkerLostError: Worker exited prematurely: exitcode 1.",
        "Moving job to FailedJobRegistry (Work-horse terminated unexpectedly; waitpid returned 139 (signal 11); )",
        '  File "/venv/lib/python3.11/site-packages/billiard/pool.py", line 1265, in mark_as_worker_lost\n    raise WorkerLostError(\n',
        "celery.platforms: Timed out waiting for UP message from <ForkProcess(ForkPoolWorker-1, started daemon)>",
        "[dramatiq.MainProcess] [ERROR] Worker with PID 4211 exited unexpectedly (code -11). Shutting down...",
    ),
    near_misses=(
        "[2024-01-05 10:00:00,000: ERROR/ForkPoolWorker-1] Task app.train[5b] raised unexpected: ValueError('bad label')\nValueError: bad label",
        "[2024-01-05 10:00:00,000: INFO/MainProcess] Task app.train[5b] received",
    ),
)
