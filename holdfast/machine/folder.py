"""The facts of a folder of installed packages, of this or of another system. Nothing in it is imported or run."""

from pathlib import Path
from typing import Any

from holdfast.core.facts import MachineFacts
from holdfast.machine.commands import Unanswerable
from holdfast.machine.libraries import read_distributions, read_torch_build
from holdfast.machine.native.survey import NativeReport, survey_folder


def facts_of_folder(folder: Path) -> tuple[MachineFacts, NativeReport]:
    """Read an environment, a site-packages folder or unpacked wheels; a RequestError says when it is none of them."""
    report = survey_folder(folder)
    roots = [Path(root) for root in report.roots]
    installed = read_distributions(roots)
    unanswered = [f"distributions: {oddity}" for oddity in installed.oddities]
    unanswered += [f"native: {file.path}: {file.reason}" for file in report.unreadable]
    torch: dict[str, Any] = {}
    for root in roots:
        if (root / "torch" / "version.py").is_file():
            try:
                torch = {"torch": read_torch_build(root / "torch")}
            except Unanswerable as error:
                unanswered.append(f"torch: {error}")
            break
    scanned = f"{report.native_files} native files"
    facts = MachineFacts(
        os=report.os,
        arch=report.arch,
        distributions=installed.versions,
        openmp_runtimes=report.openmp_runtimes,
        conflicts=report.conflicts,
        unanswered=tuple(unanswered),
        sources={"distributions": ", ".join(report.roots), "openmp_runtimes": scanned, "conflicts": scanned}
        | {name: str(root / "torch" / "version.py") for name in torch},
        **torch,
    )
    return facts, report
