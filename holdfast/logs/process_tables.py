"""Reads the tables that people paste next to a hang: `ps`, `top`, and the profiles of `perf` and VTune."""

import re
from collections.abc import Iterable

from holdfast.core.evidence import Hotspot, ProcessRow
from holdfast.logs.log_lines import Line

_STATE = r"(?P<state>[RSDTtZI][<NLsl+]*)"
_ROWS = (
    # jo   4211  0.0 12.1 9123456 812345 pts/3  Tl  Feb02  14:07 python train.py      (ps aux)
    re.compile(
        rf"^\s*\S+\s+(?P<pid>\d+)\s+(?P<cpu>\d+(?:\.\d+)?)\s+[\d.]+\s+\d+\s+\d+\s+\S+\s+{_STATE}\s+\S+\s+[\d:.-]+\s+(?P<command>\S.*)$"
    ),
    # 4211 jo  20  0  20.1g  3.1g 200000 R  3.1  9.8  0:12.01 python      (top)
    re.compile(
        rf"^\s*(?P<pid>\d+)\s+\S+\s+\S+\s+-?\d+\s+\S+\s+\S+\s+\S+\s+{_STATE}\s+(?P<cpu>\d+(?:\.\d+)?)\s+[\d.]+\s+[\d:.]+\s+(?P<command>\S.*)$"
    ),
)
_PROFILES = (
    # 62.11%  python   libgomp.so.1.0.0   [.] gomp_barrier_wait_end      (perf)
    re.compile(r"^\s*(?P<share>\d+(?:\.\d+)?)%\s+(?:\S+\s+){1,3}\[[.k]\]\s+(?P<function>\S+)"),
    # __kmp_fork_barrier   libiomp5.so   412.301s   61.2%      (VTune; the share may be missing)
    re.compile(
        r"^(?P<function>[\w:~<>@]+(?: [\w:~<>@]+)*)\s{2,}\S+\.(?:so|dylib|dll)\S*\s{2,}(?P<seconds>\d+(?:\.\d+)?)s\b"
    ),
)


def read_processes(lines: Iterable[Line]) -> tuple[ProcessRow, ...]:
    """Each row of a process table, in the order of the log."""
    found: list[ProcessRow] = []
    for number, line in lines:
        if len(line) < 400 and (match := next((one for row in _ROWS if (one := row.match(line))), None)):
            found.append(ProcessRow(number, int(match["pid"]), match["state"], float(match["cpu"]), match["command"]))
    return tuple(found)


def read_hotspots(lines: Iterable[Line]) -> tuple[Hotspot, ...]:
    """Each function of a profile with its share of the whole."""
    shares: list[Hotspot] = []
    seconds: list[Hotspot] = []
    for number, line in lines:
        if "%" in line and (match := _PROFILES[0].match(line)):
            shares.append(Hotspot(number, match["function"], float(match["share"]) / 100))
        elif "s" in line and "  " in line and (match := _PROFILES[1].match(line)):
            seconds.append(Hotspot(number, match["function"], float(match["seconds"])))
    total = sum(spot.share for spot in seconds)
    return (*shares, *(Hotspot(spot.line, spot.function, spot.share / total) for spot in seconds if total))
