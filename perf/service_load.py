"""Loads the service: 1,000 waiting jobs, 50 pages that follow a run each, and a person who clicks through the pages.

Every follower requests its run's live part every two seconds, as a browser does; half of the runs have new events.
Prints the median and 95th percentile of the person's waiting time, and the CPU time per response, which does not depend
on other load; adds them to the ledger.
"""

import argparse
import http.client
import os
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import psutil

sys.path.insert(0, str(Path(__file__).parents[1]))

from perf.figures import Figure, write_figures

PAGES = ("/", "/?state=queued", "/runs/{run}", "/runs/{run}/live", "/datasets/", "/models/", "/machines/", "/api/jobs")


def main() -> None:
    """Set up, follow, click, print."""
    options = argparse.ArgumentParser()
    options.add_argument("--jobs", type=int, default=1000)
    options.add_argument("--followers", type=int, default=50)
    options.add_argument("--seconds", type=float, default=40.0)
    options.add_argument("--no-ledger", action="store_true")
    given = options.parse_args()
    with tempfile.TemporaryDirectory(prefix="holdfast-load-") as folder:
        os.environ["HOLDFAST_HOME"] = folder
        cookie, runs = make_stage(given.jobs, given.followers)
        port = 8600 + os.getpid() % 1000
        web = subprocess.Popen(
            [sys.executable, "-m", "uvicorn", "holdfast.service.asgi:application", "--port", str(port)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            wait_for(port)
            before = cpu_seconds(web.pid)
            waited = load(port, cookie, runs, given.seconds)
            answers = waited["every page"][2] + waited["followed, every 2 s"][2]
            cost = (cpu_seconds(web.pid) - before) / answers
        finally:
            web.terminate()
            web.wait()
    for name, (median, worst, count) in waited.items():
        print(f"{name:<24} median {median * 1000:6.0f} ms   p95 {worst * 1000:6.0f} ms   ({count} times)")
    busy = os.getloadavg()[0]
    print(f"{answers} answers, {cost * 1000:.1f} ms of CPU time each")
    print(f"{given.jobs} jobs, {given.followers} followers, {os.cpu_count()} cores, load average {busy:.1f}")
    if not given.no_ledger:
        note(waited, cost)


def make_stage(jobs: int, followers: int) -> tuple[str, list[int]]:
    """Rows, folders and a logged-in user."""
    from holdfast.service.child_process import set_up

    set_up()
    from django.contrib.auth.models import User
    from django.contrib.sessions.backends.db import SessionStore
    from django.core.management import call_command
    from django.utils import timezone

    from holdfast.service.jobs.models import Job
    from tests.service.folders import write_folder

    call_command("migrate", verbosity=0)
    call_command("collectstatic", interactive=False, verbosity=0)
    user = User.objects.create_superuser("ada", password="not-asked-for")
    session = SessionStore()
    session["_auth_user_id"], session["_auth_user_hash"] = str(user.pk), user.get_session_auth_hash()
    session["_auth_user_backend"] = "holdfast.service.jobs.limits.LimitedBackend"
    session.save()
    rows = [Job(owner=user, name=f"run {at}", request={"max_steps": 100}, task="classify") for at in range(jobs)]
    Job.objects.bulk_create(rows)
    held = {"state": "running", "started": timezone.now(), "phase": "step", "step": 40, "steps": 100, "loss": 0.7}
    running = [Job(owner=user, name=f"live {at}", task="classify", **held) for at in range(followers)]
    Job.objects.bulk_create(running)
    for job in running:
        write_folder(job.folder, "running", steps=300)
    return f"sessionid={session.session_key}", [job.pk for job in running]


def load(port: int, cookie: str, runs: list[int], seconds: float) -> dict[str, tuple[float, float, int]]:
    """Follow every run while clicking through the pages; return how long each page took."""
    ended, followed, problems = threading.Event(), [0.0], []

    def follow(run: int) -> None:
        connection, mark, draws = http.client.HTTPConnection("127.0.0.1", port, timeout=60), "", random.Random(run)
        time.sleep(draws.uniform(0, 2))
        while not ended.is_set():
            begun = time.perf_counter()
            if draws.random() < 0.5:
                touch(run)
            connection.request("GET", f"/runs/{run}/live", headers={"Cookie": cookie, "If-None-Match": mark})
            answer = connection.getresponse()
            answer.read()
            mark = answer.headers.get("ETag", "")
            if answer.status not in (200, 304):
                problems.append(f"/runs/{run}/live: {answer.status}")
            followed.append(time.perf_counter() - begun)
            ended.wait(max(0.0, 2.0 - (time.perf_counter() - begun)))

    followers = [threading.Thread(target=follow, args=(run,), daemon=True) for run in runs]
    for one in followers:
        one.start()
    times: dict[str, list[float]] = {page: [] for page in PAGES}
    connection, deadline = http.client.HTTPConnection("127.0.0.1", port, timeout=60), time.monotonic() + seconds
    time.sleep(3)  # until all of them follow
    while time.monotonic() < deadline:
        for page in PAGES:
            begun = time.perf_counter()
            connection.request("GET", page.format(run=random.choice(runs)), headers={"Cookie": cookie})
            answer = connection.getresponse()
            answer.read()
            times[page].append(time.perf_counter() - begun)
            if answer.status != 200:
                problems.append(f"{page}: {answer.status} {answer.headers.get('Location', '')}")
        time.sleep(0.2)
    ended.set()
    for one in followers:
        one.join(5)
    if problems:
        print("unexpected result:", sorted(set(problems)))
    times["every page"] = [taken for page in PAGES for taken in times[page]]
    times["followed, every 2 s"] = followed[1:]
    return {name: (statistics.median(taken), percentile(taken), len(taken)) for name, taken in times.items() if taken}


def touch(run: int) -> None:
    """The run writes another step."""
    files = sorted((Path(os.environ["HOLDFAST_HOME"]) / "runs" / str(run) / "attempts").glob("*/events.jsonl"))
    with files[-1].open("a") as file:
        file.write(f'{{"event": "step_done", "time": {time.time():.3f}, "step": 41, "loss": 0.5}}\n')


def cpu_seconds(pid: int) -> float:
    """CPU time of a process so far."""
    times = psutil.Process(pid).cpu_times()
    return float(times.user + times.system)


def wait_for(port: int) -> None:
    """Wait until the web server responds."""
    for _ in range(600):
        try:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
            connection.request("GET", "/login")
            connection.getresponse().read()
            return
        except OSError:
            time.sleep(0.1)
    raise SystemExit("the web server did not start")


def percentile(taken: list[float], share: float = 0.95) -> float:
    """The value that this share of them stays below."""
    return sorted(taken)[min(len(taken) - 1, int(share * len(taken)))]


def note(waited: dict[str, tuple[float, float, int]], cost: float) -> None:
    """Add the figures to the ledger."""
    figures = [Figure("an answer, processor time", "seconds", cost, 1)]
    for name in ("every page", "followed, every 2 s"):
        median, worst, count = waited[name]
        figures += [
            Figure(f"{name}, median", "seconds", median, count),
            Figure(f"{name}, p95", "seconds", worst, count),
        ]
    write_figures("service_load", figures)


if __name__ == "__main__":
    main()
