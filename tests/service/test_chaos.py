"""A small chaos test (`make chaos` is the large one), and that it would detect two engines of one job."""

import contextlib
import os
import subprocess
import sys

import pytest

from holdfast.core.env import ATTEMPT_VARIABLE
from tests.service.chaos import chaos, verdict
from tests.service.overlaps import OverlapWatch


@pytest.mark.service
@pytest.mark.full
@pytest.mark.timeout(1800)
def test_every_job_finishes_once_whatever_is_killed(tmp_path):
    found = chaos(tmp_path, jobs=12, workers=2, broker="redis", seed=1, every=6.0, seconds=1500)
    assert found["finished_once"] == 12, found
    assert found["overlaps"] == 0, found
    assert found["engines_met"] >= 12, found
    assert found["left_running"] == 0, found
    assert sum(found["killed"].values()) >= 5, found


WITH_HELPER = """
import subprocess, sys
helper = subprocess.Popen(["sleep", "60"])
print(helper.pid, flush=True)
sys.stdin.read()
helper.kill()
"""


@contextlib.contextmanager
def engine(attempt):
    """A stand-in with a helper of its own, as engines have that load data."""
    environment = {**os.environ, ATTEMPT_VARIABLE: str(attempt)}
    command = [sys.executable, "-c", WITH_HELPER]
    process = subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    process.stdout.readline()
    try:
        yield process
    finally:
        process.communicate()


class Settled:
    """A place whose one job has ended as it should."""

    def rows(self, columns):
        return [{"id": 7, "state": "finished", "claims": 2, "claim": None, "lease_until": None, "sentence": ""}]

    def ask(self, query):
        return [{"job_id": 7}]

    def result(self, job_id):
        return {"state": "finished"}

    def events(self, job_id, name):
        return [{}]

    def find(self, *words):
        return []

    def __init__(self, runs):
        self._runs = runs

    def run_folder(self, job_id):
        return self._runs / str(job_id)


@pytest.mark.service
def test_concurrent_engines_of_one_job_are_detected(tmp_path):
    watch = OverlapWatch(tmp_path)
    with engine(tmp_path / "7" / "attempts" / "01"), engine(tmp_path / "8" / "attempts" / "01"):
        watch.look()
        assert watch.seen == {}
        assert verdict(Settled(tmp_path), [7], watch.seen)["bad"] == {}
        with engine(tmp_path / "7" / "attempts" / "02") as second:
            watch.look()
            assert list(watch.seen) == [7]
            assert f"pid {second.pid} (7/attempts/02)" in watch.seen[7]
    found = verdict(Settled(tmp_path), [7], watch.seen)
    assert (found["finished_once"], found["overlaps"]) == (0, 1)
    assert "2 engines at once" in found["bad"][7]


@pytest.mark.service
def test_two_engines_in_one_attempt_are_seen_too(tmp_path):
    watch = OverlapWatch(tmp_path)
    attempt = tmp_path / "7" / "attempts" / "01"
    with engine(attempt), engine(attempt):
        watch.look()
    assert list(watch.seen) == [7]
