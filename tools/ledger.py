"""Reads perf/ledger.csv, the ledger of figures: one line per measured figure, oldest first."""

import csv
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
LEDGER = ROOT / "perf" / "ledger.csv"


@dataclass(frozen=True, slots=True)
class Line:
    """One line of the ledger."""

    date: str
    commit: str
    machine: str
    benchmark: str
    subject: str
    unit: str
    value: float
    rounds: int


def read_ledger(path: Path) -> list[Line]:
    """All lines of a ledger, oldest first."""
    with path.open(encoding="utf-8", newline="") as file:
        return [
            Line(
                *(row[name] for name in ("date", "commit", "machine", "benchmark", "subject", "unit")),
                float(row["median"]),
                int(row["rounds"]),
            )
            for row in csv.DictReader(file)
        ]


def newest_runs(lines: list[Line]) -> dict[str, list[Line]]:
    """For each benchmark, the lines of the commit that was measured last, each subject once."""
    last = {line.benchmark: line.commit for line in lines}
    found: dict[str, dict[tuple[str, str], Line]] = {}
    for line in lines:
        if line.commit == last[line.benchmark]:
            found.setdefault(line.benchmark, {})[line.subject, line.unit] = line
    return {name: list(run.values()) for name, run in found.items()}
