"""Draws the time and memory of data preparation by number of rows, on logarithmic axes."""

from tools.ledger import Line
from tools.line_chart import Curve, line_chart

_ROWS = {1_000.0: "1,000", 10_000.0: "10,000", 100_000.0: "100,000", 1_000_000.0: "1,000,000"}
_SECONDS = {1.0: "1 s", 10.0: "10 s", 100.0: "100 s", 1_000.0: "1,000 s"}
_MEGABYTES = {10.0: "10 MB", 100.0: "100 MB", 1_000.0: "1 GB", 10_000.0: "10 GB"}


def growth_charts(runs: dict[str, list[Line]]) -> dict[str, str]:
    """One chart of time and one of memory, by name; none without measurements."""
    ours = {name.removeprefix("growth "): run for name, run in runs.items() if name.startswith("growth ")}
    if not ours:
        return {}
    time = [Curve(name, _points(run, "seconds")) for name, run in ours.items()]
    memory = [Curve(f"{name}: all processes", _points(run, "MB at the peak")) for name, run in ours.items()]
    memory += [
        Curve(f"{name}: the process that prepares", _points(run, "MB in the preparing process"))
        for name, run in ours.items()
    ]
    first, last = time[0].points[0], time[0].points[-1]
    time.append(Curve("in proportion to the rows", ((last[0] * first[1] / last[1], first[1]), last)))
    return {
        "growth_time": line_chart("Preparation of data, time", "rows", "seconds", time, _ROWS, _SECONDS),
        "growth_memory": line_chart("Preparation of data, memory", "rows", "at the peak", memory, _ROWS, _MEGABYTES),
    }


def _points(run: list[Line], unit: str) -> tuple[tuple[float, float], ...]:
    found = {float(line.subject.split()[0].replace(",", "")): line.value for line in run if line.unit == unit}
    return tuple(sorted(found.items()))
