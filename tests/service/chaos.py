"""Kill everything at random while jobs run: `python -m tests.service.chaos --jobs 200 --workers 4`.

PostgreSQL, Redis or RabbitMQ, workers, a dispatcher and the web server are real processes. Every few seconds one of
them, or an agent, a supervisor or an engine, gets SIGKILL; what a service manager would start again is started again
after a moment. In the end every job must have finished exactly once, and never two engines have worked on one. Jobs
that nobody had begun when most of the time was over are withdrawn, and not counted. Adds a line to the ledger.
"""

import argparse
import contextlib
import json
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import psutil

from perf.figures import Figure, write_figures
from tests.service.overlaps import OverlapWatch
from tests.service.parts import Part, fresh_database, postgres, rabbitmq, redis
from tests.service.place import Place, kill, place
from tests.tiny import tiny_bert

VICTIMS = {
    "worker": 3, "agent": 4, "supervisor": 3, "engine": 2, "dispatcher": 2, "web": 2, "broker": 2, "database": 1,
}  # fmt: skip


WITHDRAW = """
from holdfast.service.jobs import leases
from holdfast.service.jobs.models import Job
print([job.pk for job in Job.objects.filter(state="queued", started=None) if leases.ask_stop(job)])
"""


class Chaos:
    """One service under fire."""

    def __init__(self, site: Place, database: Part, broker: Part, *, workers: int, seed: int, every_seconds: float):
        self._site, self._every = site, every_seconds
        self._parts = {"database": database, "broker": broker}
        self._starts: dict[str, Callable[[], object]] = {
            **{f"worker{at}": lambda at=at: site.worker(f"worker{at}") for at in range(workers)},
            "dispatcher": site.dispatcher,
            "web": lambda: site.start("web", "uvicorn", "holdfast.service.asgi:application", "--port", "0"),
        }
        self._draws = random.Random(seed)
        self._again: list[tuple[float, Callable[[], object]]] = []
        self._has_withdrawn = False
        self.killed: Counter[str] = Counter()

    def run(self, jobs: list[int], seconds: float) -> list[int]:
        """Fire until all jobs have ended; the last tenth of the time is left in peace. The jobs that count."""
        jobs = list(jobs)
        for start in self._starts.values():
            start()
        begun, next_at, said_at = time.monotonic(), time.monotonic() + 15, 0.0
        while (now := time.monotonic()) - begun < seconds:
            for at, start in [entry for entry in self._again if entry[0] <= now]:
                self._again.remove((at, start))
                start()
            if now >= next_at and now - begun < 0.9 * seconds:
                next_at = now + self._draws.uniform(0.3, 1.7) * self._every
                self._fire(now)
            if now - begun > 0.75 * seconds and not self._has_withdrawn:
                self._withdraw(jobs)
            if now - said_at > 15:
                said_at = now
                with contextlib.suppress(Exception):
                    states = Counter(row["state"] for row in self._site.rows())
                    print(f"{now - begun:5.0f} s  {dict(states)}  killed {dict(self.killed)}", flush=True)
                    if states["finished"] == len(jobs):
                        return jobs
            time.sleep(0.2)
        return jobs

    def _withdraw(self, jobs: list[int]) -> None:
        """Take what nobody has begun out of the queue and the count, at the next look where the database is away."""
        with contextlib.suppress(AssertionError):
            for job_id in json.loads(self._site.run_code(WITHDRAW)):
                jobs.remove(job_id)
            self._has_withdrawn = True

    def _fire(self, now: float) -> None:
        kind = self._draws.choices(list(VICTIMS), list(VICTIMS.values()))[0]
        wait = self._draws.uniform(0.0, 4.0)
        if kind in self._parts:
            part = self._parts[kind]
            if part.process and part.process.poll() is None:
                part.kill()
                self._again.append((now + wait, part.start))
                self.killed[kind] += 1
            return
        if kind in ("agent", "supervisor", "engine"):
            words = {
                "agent": ("holdfast.service.child_process", "agent"),
                "supervisor": ("holdfast.runs.agent_child",),
                "engine": ("holdfast.engine",),
            }[kind]
            found = self._site.find(*words)
            if found:
                with contextlib.suppress(psutil.Error, ProcessLookupError):
                    kill(self._draws.choice(found))
                    self.killed[kind] += 1
            return
        name = self._draws.choice([name for name in self._starts if name.startswith(kind)])
        process = self._site.processes.get(name)
        if process and process.poll() is None:
            kill(process)
            process.wait()
            self._again.append((now + wait, self._starts[name]))
            self.killed[kind] += 1


def verdict(site: Place, jobs: list[int], overlaps: Mapping[int, str]) -> dict[str, Any]:
    """What became of every job; one that two engines worked on at once is bad, however it ended."""
    rows = {row["id"]: row for row in site.rows("id,state,claims,claim,lease_until,sentence")}
    models = Counter(row["job_id"] for row in site.ask("select job_id from jobs_trainedmodel"))
    bad: dict[int, str] = {}
    for job_id in jobs:
        row = rows[job_id]
        try:
            result, ends = site.result(job_id), len(site.events(job_id, "run_finished"))
        except (OSError, ValueError) as error:
            result, ends = {"state": repr(error)}, 0
        is_whole = result["state"] == "finished" and ends == 1 and row["claim"] is None and row["lease_until"] is None
        if row["state"] != "finished" or models[job_id] != 1 or not is_whole:
            bad[job_id] = f"{row['state']}, {models[job_id]} models, {result['state']}, {ends} ends, {row['sentence']}"
        if job_id in overlaps:
            bad[job_id] = "; ".join(filter(None, (bad.get(job_id), overlaps[job_id])))
    attempts = [len(list((site.run_folder(job_id) / "attempts").glob("*"))) for job_id in jobs]
    return {
        "jobs": len(jobs),
        "finished_once": len(jobs) - len(bad),
        "bad": bad,
        "overlaps": len(overlaps),
        "claims": sum(row["claims"] for row in rows.values()),
        "attempts": sum(attempts),
        "left_running": len(site.find("holdfast.engine")),
    }


def chaos(
    folder: Path, *, jobs: int, workers: int, broker: str, seed: int, every: float, seconds: float
) -> dict[str, Any]:
    """Run it all; what became of the jobs and how many of each were killed."""
    model = tiny_bert(folder / "model")
    make = rabbitmq if broker == "rabbitmq" else redis
    with postgres() as database, make() as hub:
        url = fresh_database(database, "chaos")
        with place(folder, model, database_url=url, broker_url=hub.url, LEASE_SECONDS=30) as site:
            ids = site.submit(jobs, max_steps=3)
            fire = Chaos(site, database, hub, workers=workers, seed=seed, every_seconds=every)
            begun = time.monotonic()
            with OverlapWatch(site.home / "runs") as watch:
                ids = fire.run(ids, seconds)
            gap = round(watch.longest_gap_seconds, 1)
            looked = {"looks": watch.looks, "engines_met": len(watch.attempts), "longest_gap_seconds": gap}
            found = verdict(site, ids, watch.seen)
            for job_id in list(found["bad"])[:5]:
                print(site.told(job_id), flush=True)
            return {**found, **looked, "killed": dict(fire.killed), "seconds": round(time.monotonic() - begun)}


if __name__ == "__main__":
    options = argparse.ArgumentParser()
    options.add_argument("--jobs", type=int, default=200)
    options.add_argument("--workers", type=int, default=4)
    options.add_argument("--broker", choices=("redis", "rabbitmq"), default="redis")
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--every", type=float, default=5.0, help="seconds between two kills, about")
    options.add_argument("--seconds", type=float, default=3600.0)
    given = vars(options.parse_args())
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # and everything is ended
    with tempfile.TemporaryDirectory(prefix="holdfast-chaos-") as folder:
        outcome = chaos(Path(folder), **given)
    print(json.dumps(outcome))
    words = f"of {outcome['jobs']}, {given['workers']} workers, {sum(outcome['killed'].values())} kills"
    figure = Figure(f"jobs finished exactly once {words}", "jobs", outcome["finished_once"], 1)
    write_figures("service_chaos", [figure])
    sys.exit(0 if outcome["finished_once"] == outcome["jobs"] else 1)
