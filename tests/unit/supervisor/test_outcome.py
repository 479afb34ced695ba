"""What is concluded from one attempt for the next."""

import signal

import pytest

from holdfast.core.event_log import EventLog
from holdfast.core.events import ChangeApplied, ExitHandlersEnded, PartUsed, ProgramEnded, TrainingStopped
from holdfast.core.heartbeat import BeatWriter
from holdfast.core.observations import ExitStatus, ProgramExit
from holdfast.core.records import Outcome
from holdfast.core.runfolder import BEAT, BEATS, EVENTS
from holdfast.logs.log_text import read_evidence
from holdfast.supervisor.outcome import (
    exit_crash,
    ineffective_changes,
    last_error,
    newest_beat,
    tried_of,
    was_killed_externally,
)


@pytest.mark.parametrize(
    ("code", "is_oom", "outside"),
    [
        (-signal.SIGTERM, False, True),
        (128 + signal.SIGTERM, False, True),  # by way of a shell, or an engine that saved first
        (-signal.SIGINT, False, True),
        (-signal.SIGKILL, True, False),
        (-signal.SIGSEGV, False, False),
        (1, False, False),
        (None, False, False),
    ],
)
def test_who_ended_it(code, is_oom, outside):
    assert was_killed_externally(code, is_oom=is_oom) is outside


def test_kill_is_external_only_if_memory_is_ruled_out():
    for can_tell in (True, False):
        assert was_killed_externally(-signal.SIGKILL, is_oom=False, can_tell=can_tell) is can_tell


def test_silence_before_detection_is_not_uptime():
    hung = Outcome(number=1, outcome="hung", seconds=325.0, noticed_after_seconds=300.0)
    assert tried_of(hung).seconds == 25.0
    for unknown in (Outcome(number=1, outcome="interrupted", seconds=3.0), Outcome(number=1, outcome="died")):
        assert tried_of(unknown).seconds == float("inf")


def test_unapplied_and_unused_changes_are_ineffective(tmp_path):
    events = EventLog(tmp_path / EVENTS)
    events.write(PartUsed(what="hf-trainer"))
    events.write(ChangeApplied(change="micro_batch", value=2, how="TrainingArguments"))
    changes = {"micro_batch_factor": 2, "loader_workers": 0, "TORCH_COMPILE_DISABLE": "1"}
    void = ineffective_changes(tmp_path, changes, Outcome(number=1, outcome="died", step_reached=10))
    assert "micro_batch_factor" not in void
    assert {"loader_workers", "compile", "TORCH_COMPILE_DISABLE"} <= set(void)


def test_used_parts_are_unknown_before_the_first_step(tmp_path):
    for phase, is_void in (("import", False), ("first step", True), ("end", True)):
        outcome = Outcome(number=1, outcome="died", phase=phase)
        assert ("loader_workers" in ineffective_changes(tmp_path, {"loader_workers": 0}, outcome)) is is_void


def test_the_last_error_comes_with_its_place():
    log = 'Traceback (most recent call last):\n  File "train.py", line 7, in <module>\n    f()\n'
    log += '  File "lib.py", line 30, in f\n    raise ValueError("odd")\nValueError: odd\n'
    assert last_error(read_evidence(log)) == ("ValueError: odd", "lib.py:30")
    assert last_error(read_evidence("all is well\n")) == ("", "")
    further = log.replace("ValueError: odd", "__main__.MyError: odd\nand more\n\n  of it")
    assert last_error(read_evidence(further)) == ("__main__.MyError: odd", "lib.py:30")
    assert last_error(read_evidence(further + "\nFatal Python error: Aborted"))[0] == "Fatal Python error: Aborted"
    assert last_error(read_evidence("ImportError: \nX requires Y"))[0] == "X requires Y"
    told = "error: the disk is full\n  found  no room\n  try    make some\n"
    assert last_error(read_evidence(told))[0] == told.splitlines()[0]


def test_the_most_advanced_page_counts(tmp_path):
    assert newest_beat(tmp_path) == ("", 0, 0)
    (tmp_path / BEATS).mkdir()
    BeatWriter(tmp_path / BEATS / "7").enter("step", 5, 60)
    BeatWriter(tmp_path / BEATS / "8").enter("import")
    assert newest_beat(tmp_path) == ("step", 5, 60)
    BeatWriter(tmp_path / BEAT).enter("save", 9, 60)
    assert newest_beat(tmp_path) == ("save", 9, 60)


def test_crash_after_last_line_counts_unless_stop_was_requested(tmp_path):
    events = EventLog(tmp_path / EVENTS)
    events.write(ProgramEnded(pid=7, is_clean=True))
    crash = exit_crash(tmp_path, 7, -signal.SIGABRT)
    assert (crash.slug, crash.exit) == ("exit-crash", ExitStatus(signal="SIGABRT"))
    assert crash.proof == ProgramExit(crashed_after="exit_handler")
    events.write(ExitHandlersEnded(pid=7))
    assert exit_crash(tmp_path, 7, -signal.SIGABRT).proof == ProgramExit(crashed_after="process")
    assert exit_crash(tmp_path, 8, -signal.SIGABRT) is exit_crash(tmp_path, 7, -signal.SIGKILL) is None
    events.write(TrainingStopped(step=3))
    assert exit_crash(tmp_path, 7, -signal.SIGABRT) is None
