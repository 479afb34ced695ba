"""The words with which a program ended itself."""

import pytest

from holdfast.core.events import Events
from holdfast.core.runfolder import EVENTS, OUTPUT
from holdfast.supervisor.own_exit import exit_lines


@pytest.mark.parametrize(
    ("told", "line"),
    [
        ({"message": "no rows\n  in data.csv"}, "its message: no rows in data.csv"),
        ({}, "its last line: no rows"),
        ({"has_raised": True}, None),
        ({"pid": 8}, None),  # not the process whose end is the attempt's
    ],
)
def test_words_count_only_where_no_error_was_raised(tmp_path, told, line):
    (tmp_path / OUTPUT).write_text("step 1\n 10%\r 20%\nno rows\n\n")
    events = Events(tmp_path / EVENTS)
    events.write("program ended", **{"pid": 7, "is_clean": False, "has_raised": False, "message": "", **told})
    assert list(exit_lines(tmp_path, 7)) == []  # an exit handler may have ended it
    events.write("exit handlers ended", pid=7)
    assert list(exit_lines(tmp_path, 7)) == ([line] if line else [])
