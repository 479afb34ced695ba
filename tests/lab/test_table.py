"""The lab's table counts what failed, told or not."""

from perf.figures import Figure
from tests.lab.table import figures_of, page_of, rates, rows_of, table

SEEN = {"fault": "SIGKILL", "phase": "step", "task": "Trainer", "named": "process-killed", "finished": True}
SEEN |= {"noticed_after_seconds": None, "identical": True}


def test_test_that_failed_early_has_a_row():
    (row,) = rows_of([("lab test", "test_it_ends[kill]")], passed=False)
    assert (row.fault, row.finished, row.passed) == ("it_ends[kill]", False, False)
    assert rows_of([], passed=False) == []


def test_rates_and_both_forms_of_the_table():
    good = rows_of([("lab test", "test_a"), ("lab row", SEEN)], passed=True)
    hung = rows_of(
        [("lab row", {**SEEN, "phase": "load", "noticed_after_seconds": 4.1, "identical": None})], passed=False
    )
    assert rates(good + hung) == [
        "finished: 2 of 2 (100%)",
        "weights identical: 1 of 1 (100%)",
        "all as the test expects: 1 of 2 (50%)",
        "hangs detected after: 4.1 s in the median, 4.1 at most",
    ]
    assert table(good + hung)[1].split() == [
        "Trainer",
        "load",
        "SIGKILL",
        "4.1",
        "s",
        "process-killed",
        "yes",
        "-",
        "FAILED",
    ]
    assert "| Trainer | step | SIGKILL | at once | process-killed | yes | yes | passed |" in page_of(good + hung)


def test_the_rates_go_into_the_ledger():
    hung = {**SEEN, "noticed_after_seconds": 4.1, "identical": None, "finished": False}
    assert figures_of(rows_of([("lab row", SEEN), ("lab row", hung)], passed=True)) == [
        Figure("finished", "% of n", 50.0, 2),
        Figure("weights identical", "% of n", 100.0, 1),
        Figure("hangs noticed after, median", "seconds", 4.1, 1),
        Figure("hangs noticed after, worst", "seconds", 4.1, 1),
    ]
