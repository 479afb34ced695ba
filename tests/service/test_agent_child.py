"""A supervisor whose agent has died gets limited time to save: its run may soon start elsewhere."""

import json
import subprocess
import sys
import time

import psutil
import pytest

from holdfast.core.runfolder import CHILD

pytestmark = pytest.mark.service

# A training that goes on whatever it is asked, as one does that writes its checkpoint to a slow disk.
SUPERVISOR = """
import pathlib, subprocess, sys, time
from holdfast.core.artifacts import write_artifact
from holdfast.runs import agent_child
from holdfast.runs.process_identity import describe_process
from holdfast.supervisor.attempt import StopRequest

def deaf(run, on_event, guard):
    attempt, stop = run / "attempts" / "01", StopRequest()
    attempt.mkdir(parents=True)
    with guard(stop):
        engine = subprocess.Popen(["sleep", "60"], start_new_session=True)
        write_artifact(attempt, "child.json", describe_process(engine.pid))
        while True:
            time.sleep(0.05)
            if stop.is_asked:
                (run / "asked").touch()

agent_child.resume_train = deaf
agent_child.main(pathlib.Path(sys.argv[1]), "model", int(sys.argv[2]), 3.0)
"""
AGENT = """
import os, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", sys.argv[1], sys.argv[2], str(os.getpid())])
print(child.pid, flush=True)
time.sleep(60)
"""


def test_run_that_outlasts_its_dead_agent_is_killed(tmp_path):
    agent = subprocess.Popen([sys.executable, "-c", AGENT, SUPERVISOR, str(tmp_path)], stdout=subprocess.PIPE)
    supervisor = psutil.Process(int(agent.stdout.readline()))
    child = tmp_path / "attempts" / "01" / CHILD
    deadline = time.monotonic() + 60
    while not child.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    engine = psutil.Process(json.loads(child.read_text())["pid"])

    agent.kill()
    agent.wait()
    begun = time.monotonic()
    _, left = psutil.wait_procs([supervisor, engine], timeout=20)
    assert not left
    assert (tmp_path / "asked").exists(), "it was asked to save first"
    assert 2.9 < time.monotonic() - begun < 10
