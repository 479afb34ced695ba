"""Real processes take their time on a busy machine: the limit on a test only ends one that would never end.

Tests tell what they saw through `lab_row`; the table of all of them, and the rate of runs that finished, come last.
"""

from collections.abc import Callable
from dataclasses import dataclass

import pytest

_ROWS: list["Row"] = []


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What one fault led to."""

    fault: str
    phase: str
    task: str
    noticed_after_seconds: float | None
    named: str
    finished: bool
    identical: bool | None  # None where there was nothing to compare


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        item.add_marker(pytest.mark.timeout(900))


@pytest.fixture
def lab_row(record_property: Callable[[str, object], None]) -> Callable[..., None]:
    """Put one line into the lab's table."""

    def add(**fields: object) -> None:
        record_property("lab row", fields)  # which also travels from a worker of pytest-xdist

    return add


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.when == "call":
        _ROWS.extend(Row(**fields) for name, fields in report.user_properties if name == "lab row")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if not _ROWS:
        return
    terminalreporter.section("the fault lab")
    for line in table(_ROWS):
        terminalreporter.write_line(line)


def table(rows: list[Row]) -> list[str]:
    """The rows under their heads, and the rate of runs that finished."""
    heads = ("fault", "phase", "task", "noticed after", "named", "finished", "weights identical")
    cells = [heads] + [
        (
            row.fault,
            row.phase,
            row.task,
            "at once" if row.noticed_after_seconds is None else f"{row.noticed_after_seconds:.1f} s",
            row.named,
            "yes" if row.finished else "NO",
            {True: "yes", False: "NO", None: "-"}[row.identical],
        )
        for row in rows
    ]
    widths = [max(len(line[at]) for line in cells) for at in range(len(heads))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in cells]
    finished = sum(row.finished for row in rows)
    return [*lines, f"finished: {finished} of {len(rows)} ({finished / len(rows):.0%})"]
