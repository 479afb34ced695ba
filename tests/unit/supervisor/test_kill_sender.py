"""Who sent SIGKILL, as far as a sender leaves a trace. The tools are stand-ins on PATH."""

import time
from pathlib import Path

import pytest

from holdfast.supervisor.kill_sender import find_sender

GROUP = "/user.slice/user-1000.slice/session-3.scope"


@pytest.fixture
def tool(tmp_path, monkeypatch):
    """Make a stand-in for a tool of the system."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)

    def make(name: str, prints: str) -> None:
        (tmp_path / "text").write_text(prints)
        file = Path(tmp_path / name)
        file.write_text(f'#!/bin/sh\nwhile read -r line; do echo "$line"; done < {tmp_path}/text\n')
        file.chmod(0o755)

    return make


def test_nobody_is_named_without_a_trace(tool):
    assert find_sender({41}, [GROUP], 0.0) == ("", "")


@pytest.mark.parametrize(
    ("line", "sender"),
    [
        (f"Killed {GROUP} due to memory pressure for /user.slice being 61.25% > 50.00% for > 20s", "systemd-oomd"),
        ('sending SIGKILL to process 41 uid 1000 "python": badness 914, VmRSS 14021 MiB', "systemd-oomd"),
        ("Killed /user.slice/user-1000.slice/session-9.scope due to memory pressure", ""),
        ("low memory! at or below SIGTERM limits, process 4123", ""),
    ],
)
def test_memory_guard_is_named_only_for_our_processes(tool, line, sender):
    tool("journalctl", line + "\n")  # it answers for the first unit that is asked for
    assert find_sender({41}, [GROUP, "/"], 0.0)[0] == sender


@pytest.mark.parametrize(
    ("state", "sender"),
    [
        ("TIMEOUT", "slurm_time_limit"),
        ("PREEMPTED", "slurm_preemption"),
        ("CANCELLED", "slurm_cancel"),
        ("RUNNING", ""),
    ],
)
def test_slurm_says_why_it_ended_a_job(tool, monkeypatch, state, sender):
    monkeypatch.setenv("SLURM_JOB_ID", "77")
    tool("scontrol", f"JobId=77 JobName=train JobState={state} Reason=None RunTime=01:00:00 TimeLimit=01:00:00\n")
    assert find_sender({41}, [], 0.0)[0] == sender


def test_end_of_a_slurm_job_is_known_without_its_tools(tool, monkeypatch):
    monkeypatch.setenv("SLURM_JOB_ID", "77")
    monkeypatch.setenv("SLURM_JOB_END_TIME", str(int(time.time())))
    assert find_sender({41}, [], 0.0)[0] == "slurm_time_limit"
    monkeypatch.setenv("SLURM_JOB_END_TIME", str(int(time.time()) + 3600))
    assert find_sender({41}, [], 0.0)[0] == ""
