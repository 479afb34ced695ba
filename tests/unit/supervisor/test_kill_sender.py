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

    def make(name: str, prints: str, asked: str = "") -> None:
        (tmp_path / "text").write_text(prints)
        file = Path(tmp_path / name)
        answer = f'while read -r line; do echo "$line"; done < {tmp_path}/text'
        file.write_text(f'#!/bin/sh\ncase "$*" in *"{asked}"*) {answer};; esac\n')
        file.chmod(0o755)

    return make


def test_nobody_is_named_without_a_trace(tool):
    assert find_sender({41}, [GROUP], 0.0) == ("", "")


@pytest.mark.parametrize(
    ("unit", "line", "is_ours"),
    [
        ("systemd-oomd", f"Killed {GROUP} due to memory pressure for /user.slice being 61% > 50% for > 20s", True),
        ("systemd-oomd", "Killed /user.slice/user-1000.slice due to memory used (98%) / total", True),
        ("systemd-oomd", "Killed /user.slice/user-1000.slice/session-9.scope due to memory pressure", False),
        ("systemd-oomd", f"Killed {GROUP}d/app.scope due to memory pressure for {GROUP} being 61.25% > 50.00%", False),
        ("earlyoom", 'sending SIGKILL to process 41 uid 1000 "python": badness 914, VmRSS 14021 MiB', True),
        ("earlyoom", 'sending SIGKILL to process 4100 uid 41 "python": badness 914, VmRSS 14021 MiB', False),
        ("earlyoom", "low memory! at or below SIGTERM limits, process 41", False),
    ],
)
def test_memory_guard_is_named_only_for_our_processes(tool, unit, line, is_ours):
    tool("journalctl", line + "\n", f"--unit={unit}")
    assert find_sender({41}, [GROUP, "/"], 0.0) == ((unit, line) if is_ours else ("", ""))


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
