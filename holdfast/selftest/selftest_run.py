"""Runs the parts of the self-test, one after the other, each within its time, and packs what they left.

A part that fails, raises or hangs does not stop the others. Each works in a thread of its own, so that one that never
returns is left behind; every process it has started is ended with the self-test.
"""

import sys
import tempfile
import threading
import time
from collections.abc import Callable, Collection
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from holdfast import __version__
from holdfast.core.errors import RequestError
from holdfast.core.text import human_seconds
from holdfast.machine.trials import Children
from holdfast.runs.support_bundle import Bundle, pack_selftest
from holdfast.selftest import step_parts, system_parts
from holdfast.selftest.fault_parts import FAULTS, FaultRuns
from holdfast.selftest.workplace import PartResult, Workplace

ALL_SECONDS = 300.0
_GRACE_SECONDS = 5.0
PartWork = Callable[[Workplace], PartResult]
PARTS = (
    *("machine", "tools", "processes", "heartbeat"),
    *(fault.name for fault in FAULTS),
    *step_parts.TASKS,
)
_LIMITS = {"machine": 45.0, "tools": 60.0, "processes": 20.0, "heartbeat": 30.0}
_OTHER_LIMIT = 240.0  # these bound each of their processes themselves


@dataclass(frozen=True, slots=True, kw_only=True)
class SelfTest:
    """The answers of a self-test."""

    holdfast: str
    platform: str
    seconds: float
    parts: tuple[PartResult, ...]

    @property
    def failed(self) -> tuple[str, ...]:
        """The parts in which something does not work that should."""
        return tuple(part.name for part in self.parts if part.state == "failed")


def run_selftest(
    only: Collection[str], target: Path | None, on_part: Callable[[PartResult], None] = lambda part: None
) -> tuple[SelfTest, Bundle]:
    """Run these parts, or all, and write the file to send."""
    if unknown := [name for name in only if name not in PARTS]:
        raise RequestError(f"unknown part {unknown[0]!r}", found=f"parts: {', '.join(PARTS)}")
    if target and target.exists():
        raise RequestError(f"{target} already exists", try_next=("--to FILE, with a new name", f"rm {target}"))
    begun = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="holdfast-selftest-", ignore_cleanup_errors=True) as name:
        place = Workplace(Path(name).resolve(), Children(), deadline=begun + ALL_SECONDS)
        parts: list[PartResult] = []
        try:
            for part, work in _works().items():
                if not only or part in only:
                    parts.append(_within_limits(part, work, place))
                    on_part(parts[-1])
        finally:
            place.children.stop(_GRACE_SECONDS)
        answers = SelfTest(
            holdfast=__version__,
            platform=sys.platform,
            seconds=round(time.monotonic() - begun, 1),
            parts=tuple(parts),
        )
        return answers, pack_selftest(place.folder, asdict(answers), target)


def _works() -> dict[str, PartWork]:
    faults = FaultRuns()
    return {
        "machine": system_parts.about_machine,
        "tools": system_parts.ask_tools,
        "processes": system_parts.tell_processes_apart,
        "heartbeat": system_parts.read_heartbeat,
        **{fault.name: faults.part(fault) for fault in FAULTS},
        **{task: step_parts.part(task) for task in step_parts.TASKS},
    }


def _within_limits(name: str, work: PartWork, place: Workplace) -> PartResult:
    """The result of a part, also if it raises or does not come back."""
    limit = place.seconds_left(_LIMITS.get(name, _OTHER_LIMIT))
    if not limit:
        return PartResult(name=name, state="skipped", summary=f"{human_seconds(ALL_SECONDS)} were over")
    results: list[PartResult] = []

    def answer() -> None:
        try:
            results.append(work(place))
        except Exception as error:  # in a thread nobody would see it
            results.append(PartResult(name=name, state="failed", summary=f"{type(error).__name__}: {error}"[:300]))

    begun = time.monotonic()
    thread = threading.Thread(target=answer, daemon=True, name=f"selftest {name}")
    thread.start()
    thread.join(limit)
    taken = round(time.monotonic() - begun, 2)
    if not results:
        return PartResult(name=name, state="failed", summary=f"no answer within {human_seconds(limit)}", seconds=taken)
    return replace(results[0], seconds=taken)
