"""Looks for crash reports of earlier attempts while later ones run, and names the cause again when one comes.

macOS writes a report about ten seconds after the crash, sometimes a minute; the next attempt does not wait for it.
"""

import dataclasses
import signal
import time
from dataclasses import dataclass
from pathlib import Path

from holdfast.core.evidence import Diagnosis
from holdfast.core.observations import ProcessExit
from holdfast.core.records import ChildInfo, Outcome, read_record, write_record
from holdfast.hazards.diagnose import diagnose
from holdfast.supervisor.cause import find_cause
from holdfast.supervisor.collect import CRASH_REPORT, read_attempt_evidence, read_collected
from holdfast.supervisor.mac_reports import find_crash_report, report_folders

_WAIT_SECONDS, _LOOK_SECONDS = 60.0, 1.0
_CRASHES = {signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGILL, signal.SIGFPE, signal.SIGTRAP}


@dataclass(frozen=True, slots=True)
class _Expected:
    outcome: Outcome
    attempt: Path
    until: float


class LateReports:
    """The reports that may still come."""

    def __init__(self) -> None:
        self._expected: dict[int, _Expected] = {}  # by number of the attempt
        self._looked_at = float("-inf")

    def expect(self, outcome: Outcome, attempt: Path) -> None:
        """Look for the report about this attempt from now on, if there may be one."""
        has_crashed = outcome.outcome == "died" and -(outcome.exit_code or 0) in _CRASHES
        if has_crashed and report_folders() and not (attempt / CRASH_REPORT).exists():
            self._expected[outcome.number] = _Expected(outcome, attempt, time.monotonic() + _WAIT_SECONDS)

    def is_expected(self, number: int) -> bool:
        """True while a report about this attempt may still come."""
        return number in self._expected

    def take(self) -> list[tuple[Outcome, Diagnosis]]:
        """Each attempt whose cause a new report has changed. Looks at most once a second."""
        now = time.monotonic()
        if not self._expected or now - self._looked_at < _LOOK_SECONDS:
            return []
        self._looked_at = now
        found = []
        for number, one in list(self._expected.items()):
            if report := find_crash_report(_pids(one.attempt), one.outcome.started):
                (one.attempt / CRASH_REPORT).write_text(report, encoding="utf-8")
                found.append(_named_again(one))
            elif now < one.until:
                continue
            del self._expected[number]
        return [(outcome, diagnosis) for outcome, diagnosis, is_new in found if is_new]


def _named_again(one: _Expected) -> tuple[Outcome, Diagnosis, bool]:
    evidence = read_attempt_evidence(one.attempt)
    diagnosis = diagnose(evidence)
    write_record(one.attempt, diagnosis)
    outcome = dataclasses.replace(
        one.outcome,
        diagnosis=diagnosis.slug,
        confidence=diagnosis.confidence,
        cause=find_cause(evidence, diagnosis, read_collected(one.attempt)),
    )
    is_new = (diagnosis.slug, diagnosis.confidence) != (one.outcome.diagnosis, one.outcome.confidence)
    return outcome, diagnosis, is_new


def _pids(attempt: Path) -> set[int]:
    child = read_record(attempt, ChildInfo)
    ended = (seen.pid for seen in read_collected(attempt).observations if isinstance(seen, ProcessExit))
    return {*ended, *((child.pid,) if child else ())}
