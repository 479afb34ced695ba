"""Real processes take their time on a busy machine: the limit on a test only ends one that would never end.

Tests tell what they saw through `lab_row`; the table of all of them, and the rate of runs that finished, come last.
HOLDFAST_LAB_TABLE names a file for it, as a page of the documentation; then the rates go into the ledger too.
"""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from perf.figures import write_figures
from tests.lab.table import Row, figures_of, page_of, rows_of, table

_ROWS: list[Row] = []


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        item.add_marker(pytest.mark.timeout(900))


@pytest.fixture
def lab_row(request: pytest.FixtureRequest, record_property: Callable[[str, object], None]) -> Callable[..., None]:
    """Put one line into the lab's table."""
    record_property("lab test", request.node.name)

    def add(**fields: object) -> None:
        record_property("lab row", fields)  # which also travels from a worker of pytest-xdist

    return add


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if not report.skipped and (report.when == "call" or report.failed):
        _ROWS.extend(rows_of(report.user_properties, report.passed))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    is_worker = hasattr(terminalreporter.config, "workerinput")
    if not _ROWS or is_worker:  # the one that started it has the rows of all
        return
    terminalreporter.section("the fault lab")
    for line in table(_ROWS):
        terminalreporter.write_line(line)
    if page := os.environ.get("HOLDFAST_LAB_TABLE"):
        Path(page).write_text(page_of(_ROWS), encoding="utf-8")
        write_figures("faults", figures_of(_ROWS))
