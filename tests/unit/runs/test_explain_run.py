"""What `explain` says of a run in which nothing failed."""

import pytest

from holdfast.core.records import ChildInfo, Outcome, write_record
from holdfast.core.runfolder import attempt_folder
from holdfast.runs.explanation import explain_run


@pytest.mark.parametrize(("outcome", "words"), [("finished", "has finished"), ("stopped", "stopped on request")])
def test_nothing_failed(tmp_path, outcome, words):
    attempt = attempt_folder(tmp_path, 1)
    attempt.mkdir(parents=True)
    write_record(attempt, ChildInfo(pid=7, start_ticks=1))
    write_record(attempt, Outcome(number=1, outcome=outcome))
    diagnosis, sentence = explain_run(tmp_path)
    assert diagnosis.title == "nothing failed"
    assert words in diagnosis.note
    assert sentence == ""
