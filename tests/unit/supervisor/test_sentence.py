"""One sentence for each kind of end."""

import json

import pytest

from holdfast.core.runfolder import EVIDENCE, OUTPUT
from holdfast.supervisor.collect import read_attempt_evidence
from holdfast.supervisor.diagnose import diagnose
from holdfast.supervisor.sentence import one_sentence

QUIET = "no OOM kill counted in cgroup /job, limit 4.0 GB nor in the whole system"


@pytest.fixture
def say(tmp_path):
    def said(exit_words: str, lines: list[str], log: str = "", **seen: object) -> str:
        (tmp_path / OUTPUT).write_text(log)
        (tmp_path / EVIDENCE).write_text(json.dumps({"exit": exit_words, "lines": lines, **seen}))
        evidence = read_attempt_evidence(tmp_path)
        return one_sentence(tmp_path, evidence, diagnose(evidence))

    return said


def test_a_kernel_kill_names_limit_count_memory_and_phase(say):
    lines = ["oom_kill +1 in cgroup /sys/fs/cgroup/job, limit 4.0 GB, peak 4.0 GB"]
    assert say("signal SIGKILL", lines, phase="evaluate", resident_bytes=3_900_000_000) == (
        "killed by the kernel for memory: cgroup limit 4.0 GB, 1 OOM kill counted, resident 3.9 GB in phase evaluate"
    )


def test_a_kill_from_outside_is_not_called_memory(say):
    sentence = say(
        "signal SIGKILL", [QUIET, "killed from outside: SIGKILL, no OOM kill counted"], phase="step", step=40
    )
    assert sentence.startswith("ended by signal SIGKILL in phase step at step 40: the run was ended from outside")
    assert "no OOM kill counted" in sentence


def test_a_hang_names_the_rank_that_holds_the_others_up(say):
    given_up = (
        "given up: sleeps; 90 s in phase step; rank 1 (process 32): sleeps, and holds the others up; rank 0: waits"
    )
    sentence = say("hang", ["verdict sleeping: sleeps", given_up], phase="step", step=20, steps=100)
    assert sentence.startswith("hung in phase step at step 20 of 100: one rank of the job does not come")
    assert "rank 1 (process 32): sleeps" in sentence
    assert "rank 0: waits" in sentence


def test_rank_positions_from_stacks_are_reported(say):
    given_up = "given up: sleeps; rank 1 (process 32): sleeps, and holds the others up; rank 0: waits for a lock"
    stands = [
        "rank 1 (pid 32) holds the others up: it stands at train.py:7 in load",
        "rank 0 (pid 31) waits for the others in all_reduce, at x:1",
    ]
    sentence = say("hang", ["verdict sleeping: sleeps", given_up, *stands], phase="step", step=20)
    assert f"({stands[0]}; {stands[1]})" in sentence
    assert "waits for a lock" not in sentence


def test_unknown_cause_names_error_and_ruled_out_causes(say):
    log = "Traceback (most recent call last):\n  File \"train.py\", line 3, in <module>\nKeyError: 'answer'"
    sentence = say("code 1", [QUIET], log)
    assert "the cause is unknown" in sentence
    assert "KeyError: 'answer'" in sentence
    assert "ruled out: a memory kill (none was counted)" in sentence


def test_an_unknown_hang_says_why_it_was_given_up(say):
    sentence = say("hang", ["verdict sleeping: sleeps", "given up: sleeps; 90 s in phase step, where 90 s are allowed"])
    assert "the cause is unknown (sleeps; 90 s in phase step, where 90 s are allowed)" in sentence
    assert "a deadlock (it was sleeping)" in sentence


def test_a_crash_is_not_called_probable(say):
    assert say("signal SIGSEGV", [QUIET]).startswith("ended by signal SIGSEGV: native code crashed")


def test_a_crash_names_the_innermost_frame(say):
    log = (
        "Fatal Python error: Segmentation fault\n\nCurrent thread 0x00007f (most recent call first):\n"
        '  File "/lib/python3.11/ctypes/__init__.py", line 519 in string_at\n  File "train.py", line 12 in <module>\n'
    )
    assert say("signal SIGSEGV", [QUIET], log).endswith("in string_at, python3.11/ctypes/__init__.py)")


def test_end_without_fault_is_reported(say):
    assert say("code 0", []) == "ended with code 0, and nothing in its output is a known failure"
