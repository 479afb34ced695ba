"""A web server or job queue ended a worker that took longer than its time limit.

What you see: "[CRITICAL] WORKER TIMEOUT (pid:26255)" and a new worker, over and over; uWSGI's "HARAKIRI"; Celery's "Hard
time limit (300s) exceeded".
Why: these limits are made for web requests (30 seconds in gunicorn). Loading a model, the first inference or a training
step inside a request takes longer, so the server takes the worker for stuck.
What we do: train in a process of its own and let the request only start it, which is what `holdfast serve` does.
"""

from holdfast.core.plan import Remedy
from holdfast.hazards import Hazard, proves, suggests

HAZARD = Hazard(
    slug="web-worker-timeout",
    title="a server ended a worker that took longer than its time limit",
    kind="crash",
    signs=(
        suggests("log", r"\[CRITICAL\] WORKER TIMEOUT \(pid:\s?\d+\)"),
        proves("log", r"HARAKIRI (?:ON WORKER|!!!|\[core)|F\*CK !!! i must kill myself"),
        proves("log", r"(?:Hard|Soft) time limit \([\d.]+s\) exceeded for|TimeLimitExceeded\(|SoftTimeLimitExceeded"),
        proves("log", r"JobTimeoutException|Task exceeded maximum timeout value"),
        proves(
            "log",
            r"Error R10 \(Boot timeout\)|code=H(?:12|20) desc=\"(?:Request|App boot) timeout\"|upstream timed out \(110:",
        ),
    ),
    remedies=(
        Remedy(
            "let the server only start training, in its own process",
            command="holdfast run --detach -- python train.py",
        ),
        Remedy(
            "allow the worker more time to load the model",
            command="gunicorn --timeout 600 app:app",
            cost="a worker that is really stuck is noticed later",
        ),
        Remedy(
            "load the model in a thread after the worker has started",
            command="gunicorn --worker-class gthread --threads 4 app:app",
        ),
        Remedy(
            "raise the limit of the task", command="celery -A app worker --time-limit 86400 --soft-time-limit 86000"
        ),
    ),
    sources=(
        "deepset-ai/haystack#363",
        "tiangolo/uvicorn-gunicorn-starlette-docker#11",
        "immich-app/immich#4007",
        "benoitc/gunicorn#2608",
    ),
    over=("host-oom", "process-killed", "celery-worker-lost"),
    matches=(
        "[2026-02-03 09:14:40 +0000] [7] [CRITICAL] WORKER TIMEOUT (pid:81)\n[2026-02-03 09:14:41 +0000] [7] [ERROR] Worker (pid:81) was sent SIGKILL! Perhaps out of memory?\n[2026-02-03 09:14:41 +0000] [95] [INFO] Booting worker with pid: 95",
        "Tue Feb  3 09:14:40 2026 - *** HARAKIRI ON WORKER 1 (pid: 81, try: 1) ***",
        "[2026-02-03 09:14:40,113: ERROR/MainProcess] Hard time limit (300s) exceeded for app.train[3c1e]",
        "rq.timeouts.JobTimeoutException: Task exceeded maximum timeout value (180 seconds)",
        "2026-02-03T09:14:40 heroku[web.1]: Error R10 (Boot timeout) -> Web process failed to bind to $PORT within 60 seconds of launch",
    ),
    near_misses=(
        "[2026-02-03 09:14:41 +0000] [95] [INFO] Booting worker with pid: 95",
        "[2026-02-03 09:14:41 +0000] [7] [ERROR] Worker (pid:81) was sent SIGKILL! Perhaps out of memory?",
        "billiard.exceptions.WorkerLostError: Worker exited prematurely: signal 9 (SIGKILL) Job: 0.",
    ),
)
