"""Says how the processes of an attempt ended, and which one was the first: ranks by their number, others by their name.

A launcher names as the root cause whoever failed loudest. The exit status of every process, in the order they went,
says who left first; a rank that left with code 0 while others were at work is that one too.
"""

import signal
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from holdfast.core.heartbeat import read_beat
from holdfast.core.old_events import read_events
from holdfast.core.runfolder import BEATS, EVENTS
from holdfast.supervisor.child_exits import ChildExit

_MOST_LINES = 40
_LOADER_WORKER = "pt_data_worker"


def read_ranks(attempt: Path) -> dict[int, int]:
    """The rank of each process of a distributed job on this machine, as they told; empty for one that trains alone."""
    ranks: dict[int, int] = {}
    for event in read_events(attempt / EVENTS):
        pid, rank = event.get("pid"), event.get("rank")
        is_rank = event.get("event") == "rank" and event.get("world_size") != 1
        if is_rank and isinstance(pid, int) and isinstance(rank, int):
            ranks[pid] = rank
    return ranks


def read_places(attempt: Path) -> dict[int, str]:
    """Where each process of an attempt was when it last beat: `in phase step at step 12`."""
    places: dict[int, str] = {}
    for page in (attempt / BEATS).glob("[0-9]*"):
        if beat := read_beat(page):
            places[int(page.name)] = f"in phase {beat.phase}" + (f" at step {beat.step}" if beat.step else "")
    return places


def rank_exit_code(exits: Sequence[ChildExit], attempt: Path, root_pid: int) -> int | None:
    """How the rank that left first ended: its code, or minus its signal; None where nobody saw it.

    A launcher says 1 for whatever happened to the processes it looks after.
    """
    ranks = read_ranks(attempt)
    first = Ends(exits, ranks, root_pid).first
    if first is None and len(ranks) == 1:  # the others are on other machines
        first = next((end for end in exits if end.pid in ranks and end.is_failure), None)
    if first is None:
        told = (event.get("exit_code") for event in read_events(attempt / EVENTS) if event["event"] == "rank ended")
        return next((code for code in told if isinstance(code, int)), None)
    return first.code if first.signal is None else -first.signal


class Ends:
    """How the processes of one attempt ended, but for its root."""

    def __init__(
        self,
        exits: Sequence[ChildExit],
        ranks: Mapping[int, int],
        root_pid: int,
        places: Mapping[int, str] | None = None,
    ):
        self._exits = [end for end in exits if end.pid != root_pid]
        self._ranks, self._places = ranks, places or {}
        self.first = self._first_rank()

    def lines(self) -> Iterator[str]:
        """One line for each end that may matter, the first rank before others."""
        failed = [end for end in self._exits if end.is_failure and end is not self.first]
        shown = [*([self.first] if self.first else []), *failed]
        for end in shown[:_MOST_LINES]:
            yield f"{self._who(end)} ended by {_how(end)} (pidfd){self._when(end)}"
        if len(shown) > _MOST_LINES:
            yield f"{len(shown)} processes ended in failure in all"

    def killed(self) -> str:
        """The process whose SIGKILL took the run down; empty when none did. A loader's worker has a name of its own."""
        first = self.first or next((end for end in self._exits if end.is_failure), None)
        is_it = first is not None and first.signal == signal.SIGKILL and first.name != _LOADER_WORKER
        return self._who(first) if first and is_it else ""

    def _first_rank(self) -> ChildExit | None:
        """The rank that left first; of several that were seen to end at one look the one that did not only follow."""
        ends = [
            end for end in self._exits if end.pid in self._ranks and (end.code is not None or end.signal is not None)
        ]
        if len(self._ranks) < 2 or not any(end.is_failure for end in ends):
            return None
        return min(ends, key=lambda end: (end.at_seconds, _lateness(end)), default=None)

    def _who(self, end: ChildExit) -> str:
        rank = self._ranks.get(end.pid)
        return f"worker pid {end.pid} ({end.name})" if rank is None else f"rank {rank} (pid {end.pid})"

    def _when(self, end: ChildExit) -> str:
        if end is not self.first:
            return ""
        where = f", {self._places[end.pid]}" if end.pid in self._places else ""
        return (", while other ranks were at work" if end.code == 0 else ", before the other ranks") + where


def _lateness(end: ChildExit) -> int:
    """Who of those that ended at one look went first: the others only follow, by an error or the launcher's SIGTERM."""
    if end.signal is not None:
        return 3 if end.signal == signal.SIGTERM else 0
    return 1 if end.code == 0 else 2


def _how(end: ChildExit) -> str:
    if end.signal is None:
        return f"code {end.code}"
    try:
        return f"signal {signal.Signals(end.signal).name}"
    except ValueError:
        return f"signal {end.signal}"
