"""The import orders that a report tells of."""

from holdfast.core.facts import NativeConflict
from holdfast.machine.native.native_report import NativeReport


def orders(report: NativeReport, runtime: str = "openmp") -> dict[tuple[str, ...], tuple[int, str]]:
    """Each order by package names, with the copies and the outcome; the case is added where there is one."""

    def key(pair: NativeConflict) -> tuple[str, ...]:
        names = (pair.first.split()[0], pair.second.split()[0])
        return (*names, "brew" if pair.when.endswith("is installed") else "no brew") if pair.when else names

    return {key(pair): (pair.copies, pair.outcome) for pair in report.conflicts if pair.runtime == runtime}
