"""Finds what macOS wrote about our processes: crash reports (`.ips`) and memory kills (`JetsamEvent`).

A report is two JSON documents, the first of one line. Names and places of the files have changed little since macOS 12;
files that cannot be read or parsed are skipped. On other systems nothing is found.
"""

import json
import sys
from collections.abc import Container, Iterator
from pathlib import Path
from typing import Any

from holdfast.core.observations import JetsamKill

_PAGE_BYTES = 16384


def report_folders() -> tuple[Path, ...]:
    """Where macOS leaves its reports: of the user's programs, and of the system."""
    if sys.platform != "darwin":
        return ()
    return (Path.home() / "Library/Logs/DiagnosticReports", Path("/Library/Logs/DiagnosticReports"))


def find_crash_report(pids: Container[int], since: float, folders: tuple[Path, ...] | None = None) -> str:
    """The text of the newest crash report about one of our processes; empty when there is none yet.

    Reports come late: mostly after ten seconds, sometimes after a minute (dpjudas/SurrealEngine#335).
    """
    for head, body in _reports(report_folders() if folders is None else folders, since, "*.ips"):
        document = _document(body)
        if document.get("pid") in pids and "threads" in document:
            return head + "\n" + body
    return ""


def find_jetsam_kills(pids: Container[int], since: float, folders: tuple[Path, ...] | None = None) -> list[JetsamKill]:
    """Each of our processes that macOS ended for memory."""
    found: list[JetsamKill] = []
    for _, body in _reports(report_folders() if folders is None else folders, since, "JetsamEvent-*.ips"):
        report = _document(body)
        for process in report.get("processes") or ():
            if isinstance(process, dict) and process.get("pid") in pids and process.get("reason"):
                resident = process.get("rpages", 0) * (report.get("memoryStatus", {}).get("pageSize") or _PAGE_BYTES)
                found.append(
                    JetsamKill(
                        pid=process["pid"],
                        name=str(process.get("name", "")),
                        reason=str(process["reason"]),
                        resident_bytes=resident,
                    )
                )
    return found


def _reports(folders: tuple[Path, ...], since: float, pattern: str) -> Iterator[tuple[str, str]]:
    """The two parts of each report newer than a time, newest first."""
    files: list[tuple[float, Path]] = []
    for folder in folders:
        try:
            files += [(file.stat().st_mtime, file) for file in folder.glob(pattern)]
        except OSError:
            continue
    for stamp, file in sorted(files, reverse=True):
        if stamp < since:
            return
        try:
            head, _, body = file.read_text(encoding="utf-8", errors="replace").partition("\n")
        except OSError:
            continue
        yield head, body


def _document(body: str) -> dict[str, Any]:
    try:
        document = json.loads(body)
    except ValueError:
        return {}
    return document if isinstance(document, dict) else {}
