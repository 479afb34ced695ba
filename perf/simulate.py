"""Calculates how much of a long run's time is useful on many machines.

Reads: perf/ledger.csv. Leaves: docs/simulation.md and its charts. One job on N machines that work in step: when one
fails, all stop and continue from the newest save. The costs of a save and a restart come from the ledger; failure rates
come from published runs. The share is calculated twice: by a formula (J. T. Daly, "A higher order estimate
of the optimum checkpoint interval for restart dumps", 2006, with a save that counts some seconds after it was taken),
and by a random simulation with fixed seeds.
"""

import math
import random
import statistics
import sys
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from holdfast.engine.save_schedule import SaveCost, cheap_interval_seconds, longest_interval_seconds
from tools.ledger import LEDGER, ROOT, Line, read_ledger
from tools.line_chart import Curve, line_chart

PAGE = ROOT / "docs" / "simulation.md"
CHARTS = ROOT / "docs" / "charts" / "simulation"
DAY, HOUR, MINUTE = 86_400.0, 3_600.0, 60.0
MACHINES = (1, 10, 100, 1_000, 3_000, 10_000)
AT_STAKE_SECONDS = 60.0  # Holdfast's own limit, `--save-seconds`
PLAYED, ROUNDS = 4_000, 10  # failures of a round


@dataclass(frozen=True, slots=True)
class Published:
    """A published failure rate of machines with 8 cards."""

    where: str
    source: str
    days_a_machine: float  # from one failure to the next

    @property
    def a_second(self) -> float:
        """Failures per machine."""
        return 1 / (self.days_a_machine * DAY)


PUBLISHED = (
    Published(
        "Llama 3 405B: 419 unplanned interruptions in 54 days, on 16,384 cards",
        "arXiv:2407.21783, section 3.3.4",
        16_384 / 8 * 54 / 419,
    ),
    Published(
        "a research cluster of 16,000 cards: 6.5 failures per thousand machine days",
        "arXiv:2410.21680, its RSC-1",
        1000 / 6.5,
    ),
    Published(
        "OPT-175B: 35 manual and about 70 automatic restarts for hardware in two months, on 992 cards",
        "arXiv:2205.01068, section 2.5",
        992 / 8 * 60 / 105,
    ),
)
FAILURES_A_SECOND = PUBLISHED[0].a_second


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """What saves and failures cost a run, in seconds."""

    save: float  # cost of each save for the loop
    write: float  # from taking a save until it is on disk, in parallel with the loop
    restart: float  # from a failure to the end of the first step after it: detection, diagnosis, start, loading

    @property
    def holdfast_interval(self) -> float:
        """The engine's save interval."""
        cost = SaveCost(stall_seconds=self.save, write_seconds=self.write)
        return min(cheap_interval_seconds(cost), longest_interval_seconds(cost, AT_STAKE_SECONDS))


@dataclass(frozen=True, slots=True)
class Input:
    """An input figure and its source."""

    what: str
    value: float
    source: str


def useful_share(failures_a_second: float, interval: float, costs: Costs) -> float:
    """The share of time spent on steps that count, by formula. Failures are random, also during a restart."""
    rate = failures_a_second
    lost = math.exp(-rate * (costs.restart + costs.write))
    return rate * interval * lost / math.expm1(rate * (interval + costs.save))


def best_interval(failures_a_second: float, save: float) -> float:
    """The best save interval, after Daly; Young's square root is its first term."""
    between = 1 / failures_a_second
    if save >= 2 * between:
        return between
    part = math.sqrt(save / (2 * between))
    return math.sqrt(2 * save * between) * (1 + part / 3 + part * part / 9) - save


def played_share(failures_a_second: float, interval: float, costs: Costs, draws: random.Random) -> float:
    """The same share, from one simulated run up to its last failure."""
    clock = useful = 0.0
    for _ in range(PLAYED):
        left = draws.expovariate(failures_a_second)
        while left < costs.restart:  # it fails again before it has started
            clock += left
            left = draws.expovariate(failures_a_second)
        clock += left
        working = left - costs.restart
        saves = max(0, math.floor((working - costs.write) / (interval + costs.save)))
        useful += saves * interval
    return useful / clock


def played(failures_a_second: float, interval: float, costs: Costs, seed: int = 0) -> tuple[float, float]:
    """Mean of several rounds, and its standard error."""
    shares = [
        played_share(failures_a_second, interval, costs, random.Random(f"{seed} {number}")) for number in range(ROUNDS)
    ]
    return statistics.mean(shares), statistics.stdev(shares) / math.sqrt(ROUNDS)


def read_inputs(lines: Iterable[Line]) -> tuple[Costs, list[Input]]:
    """The costs from the newest lines of the ledger; costs that were not measured are assumed and marked so."""
    newest = {(line.benchmark, line.subject): line for line in lines}

    def take(what: str, benchmark: str, subject: str, otherwise: float) -> Input:
        line = newest.get((benchmark, subject))
        if line is None:
            return Input(what, otherwise, "assumed; not measured yet")
        return Input(what, line.value, f'measured: "{subject}", {line.machine}, {line.date}, commit {line.commit}')

    # By wall clock it is too small to distinguish from noise; the writer's CPU time is an upper bound.
    cost = "processor time of a save's writer"
    save = take("the loop's cost of a save, at most", "checkpoints minilm", cost, 0.3)
    write = take("from taking a save until it is on disk", "checkpoints minilm", "until a save is on the disk", 2.0)
    restart = take("from a failure to the end of the next step", "restart minilm", "new process", 30.0)
    return Costs(save=save.value, write=write.value, restart=restart.value), [save, write, restart]


def files_of(lines: Iterable[Line]) -> dict[Path, str]:
    """The page and its charts, keyed by path."""
    costs, inputs = read_inputs(lines)
    by_hand = replace(costs, restart=10 * MINUTE)
    curves = [
        Curve(f"Holdfast: a save every {costs.holdfast_interval:.0f} s, costs as measured", _by_machines(costs)),
        Curve("the same, but 10 minutes per restart", _by_machines(by_hand, costs.holdfast_interval)),
        Curve("a save every hour, 10 minutes per restart", _by_machines(by_hand, HOUR)),
        Curve("a save every hour, restarted manually after an hour", _by_machines(replace(costs, restart=HOUR), HOUR)),
    ]
    ticks = {float(count): f"{count:,}" for count in (1, 10, 100, 1_000, 10_000)}
    machines = line_chart(
        "Useful time by number of machines, simulated", "machines of 8 cards", "share of time", curves, ticks
    )
    by_cadence = [Curve(f"{count:,} machines", _by_interval(count, costs)) for count in (10, 100, 1_000, 10_000)]
    ticks = {10.0: "10 s", 60.0: "1 min", 600.0: "10 min", HOUR: "1 h", 4 * HOUR: "4 h"}
    cadence = line_chart(
        "Useful time by save interval, simulated", "between two saves", "share of time", by_cadence, ticks
    )
    page = _page(costs, inputs)
    return {PAGE: page, CHARTS / "machines.svg": machines, CHARTS / "cadence.svg": cadence}


def _by_machines(costs: Costs, interval: float | None = None) -> tuple[tuple[float, float], ...]:
    counts = [10 ** (at / 8) for at in range(33)]
    apart = interval or costs.holdfast_interval
    return tuple((count, 100 * useful_share(count * FAILURES_A_SECOND, apart, costs)) for count in counts)


def _by_interval(machines: int, costs: Costs) -> tuple[tuple[float, float], ...]:
    steps = 48
    apart = [10 * (4 * HOUR / 10) ** (at / steps) for at in range(steps + 1)]
    return tuple((one, 100 * useful_share(machines * FAILURES_A_SECOND, one, costs)) for one in apart)


def _page(costs: Costs, inputs: list[Input]) -> str:
    given = "\n".join(f"| {one.what} | {one.value:.3g} s | {one.source} |" for one in inputs)
    rates = "\n".join(_rate(one, costs) for one in PUBLISHED)
    rows = "\n".join(_row(count, costs) for count in MACHINES)
    worse = "\n".join(_worse(words, changed, times) for words, changed, times in _what_if(costs))
    return f"""# Many machines, simulated

Generated by `make numbers`. **Nothing here was run on many machines.** This page calculates what the measured costs
would mean for one job on 1 to 10,000 machines, under the assumptions below. "Useful" is the share of wall time that
goes into steps that count in the end.

![Useful time by number of machines](charts/simulation/machines.svg)
![Useful time by time between two saves](charts/simulation/cadence.svg)

## Inputs

| | seconds | source |
| --- | --- | --- |
{given}

How often a machine with 8 cards fails, from published runs, and the useful share at each rate:

| | source | a machine fails every | 1,000 machines | 10,000 machines |
| --- | --- | --- | --- | --- |
{rates}

The rest of this page uses the first rate. Each figure was checked against other reports of the same paper; the 70
of OPT-175B are its authors' own estimate ("70+"). A rate per machine omits failures that only affect jobs: in the
second paper jobs of 1,024 cards lived 7.9 hours on average, where its rate alone would give 28.8. The engine spaces
saves so that they cost 1%, and at most {AT_STAKE_SECONDS:.0f} s of work apart: {costs.holdfast_interval:.0f} s with
these costs. (In a run that has failed often it uses Young's shorter interval; that is not modeled here.)

## Results

| machines | one fails every | best save interval (Daly) | useful share then | with Holdfast's interval | simulated |
| --- | --- | --- | --- | --- | --- |
{rows}

"Simulated" is the same as the column before it, from {ROUNDS} rounds of {PLAYED:,} random failures (with fixed
seeds), and one standard error. The formula is Daly's (2006); Young's rule (1974) is its first term.

On few machines the engine saves more often than these failures require: it pays up to 1% so that nobody loses more
than a minute. There, most runs end because of software faults, not broken machines, and this rate does not include
them.

## If the costs are higher

The measured costs are those of a small model on one machine with its own disk. A large model saves and loads more
slowly, and a cluster has to replace the broken machine. The same with some costs ten times as high:

| | 100 machines | 1,000 machines | 10,000 machines |
| --- | --- | --- | --- |
{worse}

## Assumptions

- Failures are random and independent, at a constant rate per machine, and each stops the whole job. Bursts, slow
  machines that do not fail, and storage or network failures that affect many machines at once are not modeled.
- A replacement for a broken machine is available at once; finding one is not included.
- Costs do not grow with the number of machines. Starting a job on thousands of machines takes longer than on one,
  and all of them write at the same time.
- A save counts once it is on disk, {costs.write:.3g} s after it was taken; work since then is repeated.
- Every failure is detected as fast as a killed process. A hang takes seconds longer ([how hangs are
  detected](watching.md)).
"""


def _rate(one: Published, costs: Costs) -> str:
    shares = [_percent(useful_share(count * one.a_second, costs.holdfast_interval, costs)) for count in (1_000, 10_000)]
    return f"| {one.where} | {one.source} | {one.days_a_machine:.0f} days | {' | '.join(shares)} |"


def _row(count: int, costs: Costs) -> str:
    rate = count * FAILURES_A_SECOND
    best = best_interval(rate, costs.save)
    ours = costs.holdfast_interval
    mean, error = played(rate, ours, costs, seed=count)
    cells = (
        f"{count:,}",
        _span(1 / rate),
        _span(best),
        _percent(useful_share(rate, best, costs)),
        f"{100 * useful_share(rate, ours, costs):.3f} %",
        f"{100 * mean:.3f} ± {100 * error:.3f} %",
    )
    return f"| {' | '.join(cells)} |"


def _what_if(costs: Costs) -> list[tuple[str, Costs, float]]:
    dear = replace(costs, save=10 * costs.save, write=10 * costs.write)
    slow = replace(costs, restart=10 * costs.restart)
    return [
        ("as measured", costs, 1),
        ("saves ten times as expensive and slow", dear, 1),
        ("restarts ten times as slow", slow, 1),
        ("failures ten times as frequent", costs, 10),
        ("all three", replace(dear, restart=slow.restart), 10),
    ]


def _worse(words: str, costs: Costs, times: float) -> str:
    shares = []
    for count in (100, 1_000, 10_000):
        rate = count * times * FAILURES_A_SECOND
        shares.append(_percent(useful_share(rate, costs.holdfast_interval, costs)))
    return f"| {words}: a save every {costs.holdfast_interval:.0f} s | {' | '.join(shares)} |"


def _percent(share: float) -> str:
    return f"{100 * share:.2f} %"


def _span(seconds: float) -> str:
    for unit, size in (("days", DAY), ("hours", HOUR), ("minutes", MINUTE)):
        if seconds >= 1.5 * size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.0f} s"


def main() -> None:
    """Write the page and its charts."""
    CHARTS.mkdir(parents=True, exist_ok=True)
    for path, text in files_of(read_ledger(LEDGER)).items():
        path.write_text(text, encoding="utf-8")
        print(path.relative_to(ROOT))


if __name__ == "__main__":
    main()
