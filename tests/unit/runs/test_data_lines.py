"""What `train` always shows of its data: the columns it chose, and rows that were left out later."""

from holdfast.core.events import DataPrepared, Surveyed
from holdfast.core.plan import Choice
from holdfast.runs.event_wording import event_lines

CHOICES = {
    name: Choice(value, "")
    for name, value in (("text column", "Message"), ("label column", "agent"), ("encoding", "x"))
}


def shown(event: Surveyed | DataPrepared) -> str:
    return " ".join(line.text for line in event_lines(event) if not line.is_detail)


def test_chosen_columns_are_always_shown():
    event = Surveyed(task="classify", form="one label", rows=9, splits={"train": 9}, labels=2, choices=CHOICES)
    assert "Message" in shown(event)
    assert "agent" in shown(event)
    assert "encoding" not in shown(event)


def test_rows_left_out_while_tokenizing_are_always_shown():
    assert "6 rows" in shown(DataPrepared(is_reused=False, seconds=1.0, bad_row_count=6))
    assert shown(DataPrepared(is_reused=False, seconds=1.0)) == ""
