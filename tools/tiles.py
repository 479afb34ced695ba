"""Draws the small charts of the README from the same ledger lines as the page of numbers.

Each answers one question of a newcomer: does it finish, does it name the cause, is it fast, what does it cost, how much
of the time is useful, how soon does it start. A tile without figures is omitted.
"""

from collections.abc import Mapping, Sequence

from perf.simulate import FAILURES_A_SECOND, read_inputs, useful_share
from tools.bar_chart import Bar, Panel, tile
from tools.ledger import Line

Runs = Mapping[str, Sequence[Line]]
_GOALS = (  # benchmark, subject, label, unit, goal
    ("checkpoints minilm", "share of step time", "checkpoints, of step time", "%", 1.0),
    ("supervision", "processor share of the supervisor", "supervisor, of one core", "%", 1.0),
    ("supervision", "preload, share of a step", "preload in a script, of a step", "%", 1.0),
    ("checkpoints minilm", "stall of a save, median", "stall of a save, median", "s", 0.2),
    ("checkpoints minilm", "work lost at a kill, median", "work lost at a kill, median", "s", 60.0),
    ("checkpoints minilm", "work lost at a kill, worst", "work lost at a kill, worst", "s", 60.0),
)


def tiles(runs: Runs, ratios: Mapping[str, float]) -> dict[str, str]:
    """The pictures by name; `ratios` are the speeds relative to the fastest peer, by task and device."""
    made = {
        "finish": _finish(runs),
        "diagnosis": _diagnosis(runs),
        "speed": _speed(ratios),
        "safety": _safety(runs),
        "useful": _useful(runs),
        "first_step": _first_step(runs),
    }
    return {f"short_{name}": picture for name, picture in made.items() if picture}


def _finish(runs: Runs) -> str | None:
    seen = _by_subject(runs, "bare")
    if not seen:
        return None
    bars = []
    for way, words in (("holdfast", "with Holdfast"), ("shell loop", "in a shell retry loop"), ("bare", "alone")):
        for what in ("finished", "same weights"):
            bars.append(_percent(f"{words}: {what}", seen[f"{way}: {what}"].value, is_ours=way == "holdfast"))
    healthy = _by_subject(runs, "healthy")
    killed = healthy.get("healthy runs that were killed")
    left_alone = f"; healthy runs killed: {killed.value:.0f} of {killed.rounds}" if killed else ""
    faults = seen["holdfast: finished"].rounds
    return tile(Panel("Does it finish?", f"{faults} faults, unattended{left_alone}", tuple(bars)), 100)


def _diagnosis(runs: Runs) -> str | None:
    seen = _by_subject(runs, "diagnosis")
    if not seen:
        return None
    aside = [line for line in seen.values() if line.subject.startswith("wild, kept aside: ")]
    bars = [
        _percent(f"{what} ({line.rounds})", line.value, is_ours=what.startswith(("right", "cause", "covered")))
        for line in aside
        for what in [line.subject.partition(": ")[2]]
    ]
    about = f"{aside[0].rounds} real failures as they came, not read while hazards were written" if aside else ""
    return tile(Panel("Does it name the cause?", about, tuple(bars)), 100) if aside else None


def _speed(ratios: Mapping[str, float]) -> str | None:
    bars = [Bar(title, ratio, f"{ratio:.1f} times", True) for title, ratio in ratios.items()]
    most = max(ratios.values(), default=0)
    return tile(Panel("How fast?", "times the fastest other trainer, at minimum", tuple(bars)), most) if bars else None


def _safety(runs: Runs) -> str | None:
    bars = []
    for benchmark, subject, words, unit, goal in _GOALS:
        line = _by_subject(runs, benchmark).get(subject)
        if line:
            value = 100 * line.value if line.unit.startswith("share") else line.value
            bars.append(Bar(words, value / goal, f"{max(value, 0):.2g} {unit} (goal {goal:g} {unit})", True))
    return (
        tile(Panel("What does safety cost?", "a full bar is the goal; shorter is better", tuple(bars)), 1)
        if bars
        else None
    )


def _useful(runs: Runs) -> str | None:
    seen = _by_subject(runs, "useful_time")
    bars = [_percent(line.subject, line.value, is_ours=True) for line in seen.values() if line.unit.startswith("%")]
    costs, _ = read_inputs(line for run in runs.values() for line in run)
    for machines in (1_000, 10_000):
        share = useful_share(machines * FAILURES_A_SECOND, costs.holdfast_interval, costs)
        bars.append(_percent(f"simulated: {machines:,} machines", 100 * share, is_ours=False))
    where = "of 30 minutes with a random fault every three"
    return tile(Panel("How much time is useful?", where, tuple(bars)), 100) if seen else None


def _first_step(runs: Runs) -> str | None:
    seen = _by_subject(runs, "first_step")
    bars = [Bar(line.subject, line.value, f"{line.value:.1f} s", "holdfast" in line.subject) for line in seen.values()]
    most = max((line.value for line in seen.values()), default=0)
    where = "from the command to the end of the first step"
    return tile(Panel("How soon does it train?", where, tuple(bars)), most) if bars else None


def _by_subject(runs: Runs, benchmark: str) -> dict[str, Line]:
    return {line.subject: line for line in runs.get(benchmark, ())}


def _percent(words: str, value: float, *, is_ours: bool) -> Bar:
    return Bar(words, value, f"{value:.3g} %", is_ours)
