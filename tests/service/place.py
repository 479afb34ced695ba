"""A service of real processes: a home, a database, perhaps a broker; workers, agents and supervisors to kill."""

import contextlib
import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).parents[2]


class Place:
    """One service and its processes."""

    def __init__(self, folder: Path, model: Path, *, database_url: str = "", broker_url: str = "", **variables: object):
        self.home, self._model, self._database_url = folder / "home", model, database_url
        given = {f"HOLDFAST_{name}": str(value) for name, value in variables.items()}
        self.environment = {
            **os.environ,
            "HOLDFAST_HOME": str(self.home),
            "HOLDFAST_DATABASE_URL": database_url,
            "HOLDFAST_BROKER_URL": broker_url,
            "HOLDFAST_LEASE_SECONDS": "12",
            "XDG_STATE_HOME": str(folder / "state"),
            "XDG_CACHE_HOME": str(folder / "cache"),
            **given,
        }
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def run(self, *arguments: str) -> str:
        """One of our commands to its end."""
        done = subprocess.run(
            [sys.executable, "-m", *arguments], env=self.environment, cwd=ROOT, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def run_code(self, code: str) -> str:
        """A few lines in a process of their own with Django ready."""
        ready = "from holdfast.service.child_process import set_up; set_up()\n"
        done = subprocess.run(
            [sys.executable, "-c", ready + code], env=self.environment, cwd=ROOT, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def migrate(self) -> "Place":
        self.home.mkdir(parents=True, exist_ok=True)
        self.run("holdfast.service", "migrate", "--verbosity", "0")
        return self

    def submit(self, count: int = 1, **given: object) -> list[int]:
        settings = {"max_steps": 6, **given}
        found: list[int] = json.loads(
            self.run("tests.service.seed", str(self._model), str(count), json.dumps(settings))
        )
        return found

    def start(self, name: str, *arguments: str) -> "subprocess.Popen[bytes]":
        """One of our processes that stays."""
        log = (self.home / f"test-{name}.log").open("ab")
        process = subprocess.Popen(
            [sys.executable, "-m", *arguments],
            env=self.environment,
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        log.close()
        self.processes[name] = process
        return process

    def worker(self, name: str = "one", slots: int = 1) -> "subprocess.Popen[bytes]":
        queues = "--queues=any,cpu"  # or it waits for doctor
        return self.start(name, "holdfast", "worker", "--name", name, "--slots", str(slots), queues)

    def dispatcher(self) -> "subprocess.Popen[bytes]":
        return self.start("dispatcher", "holdfast.service.child_process", "dispatcher")

    def rows(self, columns: str = "id,state,claims,step,sentence", where: str = "1=1") -> list[dict[str, Any]]:
        return self.ask(f"select {columns} from jobs_job where {where} order by id")

    def row(self, job_id: int, columns: str = "state,claims,claim,step,steps,sentence,worker_id") -> dict[str, Any]:
        return self.rows(columns, f"id={job_id}")[0]

    def ask(self, query: str) -> list[dict[str, Any]]:
        if self._database_url:
            import psycopg
            from psycopg.rows import dict_row

            with psycopg.connect(self._database_url, row_factory=dict_row, connect_timeout=5) as connection:
                return list(connection.execute(query))
        with contextlib.closing(sqlite3.connect(self.home / "service.sqlite3", timeout=20)) as connection:
            connection.row_factory = sqlite3.Row
            return [dict(row) for row in connection.execute(query)]

    def run_folder(self, job_id: int) -> Path:
        return self.home / "runs" / str(job_id)

    def result(self, job_id: int) -> dict[str, Any]:
        return dict(json.loads((self.run_folder(job_id) / "result.json").read_text()))

    def events(self, job_id: int, name: str) -> list[dict[str, Any]]:
        lines = (self.run_folder(job_id) / "events.jsonl").read_text().splitlines()
        return [event for line in lines if (event := json.loads(line))["event"] == name]

    def agent(self, job_id: int) -> psutil.Process:
        """The living agent of a job."""
        return self.find("holdfast.service.child_process", "agent", str(job_id))[-1]

    def supervisor(self, job_id: int) -> psutil.Process:
        return self.find("holdfast.runs.agent_child", str(self.run_folder(job_id)))[-1]

    def engines(self, job_id: int) -> list[psutil.Process]:
        return self.find("holdfast.engine", str(self.run_folder(job_id)))

    def find(self, *words: str) -> list[psutil.Process]:
        """Our living processes whose command line holds all these words; the first word is a whole one."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                line = process.cmdline()
                mine = process.environ().get("HOLDFAST_HOME") == str(self.home)
                if mine and process.status() != psutil.STATUS_ZOMBIE and all(_has(line, word) for word in words):
                    found.append(process)
        return sorted(found, key=lambda process: process.create_time())

    def wait(self, job_id: int, *states: str, seconds: float = 400) -> dict[str, Any]:
        """Wait until a job is in one of these states."""
        self.until(lambda: self.row(job_id)["state"] in states, seconds, lambda: self.told(job_id))
        return self.row(job_id)

    def wait_for_steps(self, job_id: int, step: int = 20, seconds: float = 400) -> None:
        """Wait until the run's folder shows that it trains."""

        def trains() -> bool:
            files = self.run_folder(job_id).glob("attempts/*/events.jsonl")
            return any(f'"step":{step},' in file.read_text() for file in files)

        self.until(trains, seconds, lambda: self.told(job_id))

    def first_steps(self, job_id: int) -> list[int]:
        """The step at which each attempt began to train."""
        found = []
        for file in sorted(self.run_folder(job_id).glob("attempts/*/events.jsonl")):
            events = [json.loads(line) for line in file.read_text().splitlines()]
            found += [int(event["first_step"]) for event in events if event["event"] == "training_started"]
        return found

    def wait_for_resume(self, job_id: int, seconds: float = 400) -> None:
        """Wait until the run has gone on from a checkpoint."""
        self.until(lambda: any(self.first_steps(job_id)[1:]), seconds, lambda: self.told(job_id))

    def said(self, name: str) -> str:
        """What one of our processes printed, in all its lives."""
        return (self.home / f"test-{name}.log").read_text()

    def wait_for_words(self, name: str, words: str, *, times: int = 1) -> None:
        """Wait until one of our processes has said so, so many times."""
        self.until(lambda: self.said(name).count(words) >= times, 400, lambda: self.said(name))

    def stop(self, job_id: int) -> None:
        """Ask a job to stop and see that it does."""
        code = "from holdfast.service.jobs import leases; from holdfast.service.jobs.models import Job; "
        self.run_code(f"{code}assert leases.ask_stop(Job.objects.get(pk={job_id}))")
        self.wait(job_id, "stopped")

    def until(self, is_so: Callable[[], bool], seconds: float, told: Callable[[], str] = lambda: "") -> None:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            with contextlib.suppress(IndexError, OSError):
                if is_so():
                    return
            time.sleep(0.2)
        raise AssertionError(f"not within {seconds} s\n{told()}")

    def told(self, job_id: int) -> str:
        """Everything that may say why a job stands where it stands."""
        files = [self.home / "agents" / f"{job_id}.log", self.run_folder(job_id) / "supervisor.log"]
        files += sorted(self.home.glob("test-*.log"))
        said = [f"== {file.name}\n{file.read_text()[-3000:]}" for file in files if file.exists()]
        return "\n".join([str(self.rows()), *said])

    def close(self) -> None:
        """End everything that was started, and what it started."""
        for _ in range(20):
            left = self.find()
            for process in left:
                if process.pid != os.getpid():
                    with contextlib.suppress(psutil.Error):
                        process.kill()
            if not left:
                break
            time.sleep(0.1)
        for process in self.processes.values():
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            process.wait()


@contextlib.contextmanager
def place(folder: Path, model: Path, **given: Any) -> Iterator[Place]:
    """A service with its tables made; everything is ended in the end."""
    made = Place(folder, model, **given)
    try:
        yield made.migrate()
    finally:
        made.close()


def kill(process: "psutil.Process | subprocess.Popen[bytes]", number: int = signal.SIGKILL) -> None:
    os.kill(process.pid, number)


def _has(line: list[str], word: str) -> bool:
    return word in line or (os.sep in word and any(part == word or part.startswith(word + os.sep) for part in line))
