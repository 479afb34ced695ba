"""The words with which a program ended itself."""

import pytest

from holdfast.core.old_events import Events
from holdfast.core.runfolder import EVENTS, OUTPUT
from holdfast.supervisor.own_exit import exit_lines


@pytest.mark.parametrize(
    ("told", "line"),
    [
        ({"message": "found\n  no rows"}, "its message: found no rows"),
        ({"message": "nothing left"}, "its last line: no rows"),  # it was never printed: the program caught that exit
        ({}, "its last line: no rows"),
        ({"output_bytes": 0}, "it left without a word"),
        ({"output_bytes": None}, "its last line: tracker: find logs at x"),
        ({"has_raised": True}, None),
        ({"pid": 8}, None),  # not the process whose end is the attempt's
    ],
)
def test_message_counts_only_without_an_error(tmp_path, told, line):
    printed = "step 1\n 10%\r 20%\nfound\n no rows\n\n"
    (tmp_path / OUTPUT).write_text(f"{printed}tracker: find logs at x\n")
    events = Events(tmp_path / EVENTS)
    ended = {"pid": 7, "is_clean": False, "has_raised": False, "message": "", "output_bytes": len(printed)}
    events.write("program ended", **{**ended, **told})
    assert list(exit_lines(tmp_path, 7)) == []  # an exit handler may have ended it
    events.write("exit handlers ended", pid=7)
    assert list(exit_lines(tmp_path, 7)) == ([line] if line else [])


@pytest.mark.parametrize(
    ("told", "line"),
    [
        ({"message": "no rows"}, "its message: no rows; then one of its exit handlers crashed"),
        ({}, "its last line: no rows; then one of its exit handlers crashed"),
        ({"message": "nothing left"}, None),  # caught; how it left then is not known
        ({"is_clean": True}, None),
        ({"has_raised": True}, None),
    ],
)
def test_later_crash_is_reported_with_the_message(tmp_path, told, line):
    (tmp_path / OUTPUT).write_text("no rows\n")
    ended = {"pid": 7, "is_clean": False, "has_raised": False, "message": "", "output_bytes": 8}
    Events(tmp_path / EVENTS).write("program ended", **{**ended, **told})
    assert list(exit_lines(tmp_path, 7, has_crashed=True)) == ([line] if line else [])
