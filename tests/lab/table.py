"""The lab's table: task, phase and fault, and what came of it. A test that failed has its line too."""

import datetime
from dataclasses import dataclass

from perf.figures import Figure, commit_and_machine

HEADS = ("task", "phase", "fault", "noticed after", "named", "finished", "weights identical", "test")
PHASES = ("import", "load", "first step", "step", "evaluate", "save", "export", "resume")


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
    passed: bool = True  # the whole test, which may ask for more


def rows_of(properties: list[tuple[str, object]], passed: bool) -> list[Row]:
    """The rows that a test told of; one that failed before it told of any has one all the same."""
    told = [Row(**{**fields, "passed": passed}) for name, fields in properties if name == "lab row"]
    names = [str(name) for kind, name in properties if kind == "lab test"]
    if told or passed or not names:
        return told
    nothing = {"noticed_after_seconds": None, "named": "", "finished": False, "identical": None}
    return [Row(fault=names[0].removeprefix("test_"), phase="", task="", passed=False, **nothing)]


def table(rows: list[Row]) -> list[str]:
    """The rows under their heads, and the rates."""
    cells = [HEADS, *_cells(rows)]
    widths = [max(len(line[at]) for line in cells) for at in range(len(HEADS))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in cells]
    return [*lines, *rates(rows)]


def rates(rows: list[Row]) -> list[str]:
    """How many finished, with the same weights, as the test asked, and how soon hangs were noticed."""
    compared = [row for row in rows if row.identical is not None]
    noticed = sorted(row.noticed_after_seconds for row in rows if row.noticed_after_seconds is not None)
    lines = [
        _rate("finished", [row.finished for row in rows]),
        _rate("weights identical", [bool(row.identical) for row in compared]),
        _rate("all as the test expects", [row.passed for row in rows]),
    ]
    if noticed:
        lines.append(
            f"hangs detected after: {noticed[len(noticed) // 2]:.1f} s in the median, {noticed[-1]:.1f} at most"
        )
    return lines


def page_of(rows: list[Row]) -> str:
    """The table as a page of the documentation."""
    commit, machine = commit_and_machine()
    head = "| " + " | ".join(HEADS) + " |\n|" + "---|" * len(HEADS)
    lines = ["| " + " | ".join(cells) + " |" for cells in _cells(rows)]
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    return "\n".join(
        [
            "# Outcome of each fault",
            "",
            f"Written by `make lab-all` on {today}, commit {commit}, {machine}.",
            "A death is detected at once, by its exit status.",
            "",
            *(f"- {line}" for line in rates(rows)),
            "",
            head,
            *lines,
            "",
        ]
    )


def figures_of(rows: list[Row]) -> list[Figure]:
    """The rates, for docs/numbers.md."""
    compared = [bool(row.identical) for row in rows if row.identical is not None]
    shares = {"finished": [row.finished for row in rows], "weights identical": compared}
    found = [
        Figure(what, "% of n", 100 * sum(truths) / len(truths), len(truths))
        for what, truths in shares.items()
        if truths
    ]
    noticed = sorted(row.noticed_after_seconds for row in rows if row.noticed_after_seconds is not None)
    if noticed:
        found.append(Figure("hangs noticed after, median", "seconds", noticed[len(noticed) // 2], len(noticed)))
        found.append(Figure("hangs noticed after, worst", "seconds", noticed[-1], len(noticed)))
    return found


def _rate(what: str, truths: list[bool]) -> str:
    return f"{what}: {sum(truths)} of {len(truths)}" + (f" ({sum(truths) / len(truths):.0%})" if truths else "")


def _cells(rows: list[Row]) -> list[tuple[str, ...]]:
    return [
        (
            row.task,
            row.phase,
            row.fault,
            "at once" if row.noticed_after_seconds is None else f"{row.noticed_after_seconds:.1f} s",
            row.named,
            "yes" if row.finished else "NO",
            {True: "yes", False: "NO", None: "-"}[row.identical],
            "passed" if row.passed else "FAILED",
        )
        for row in sorted(rows, key=lambda row: (row.task, _place(row.phase), row.fault))
    ]


def _place(phase: str) -> int:
    return PHASES.index(phase) if phase in PHASES else len(PHASES)
