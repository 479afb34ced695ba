"""Reports of macOS, from files laid out as it writes them."""

import json
import os
from pathlib import Path

from holdfast.supervisor.mac_reports import find_crash_report, find_jetsam_kills


def report(folder: Path, name: str, body: dict, stamp: float = 1000.0) -> None:
    file = folder / name
    file.write_text('{"app_name":"python3.11","bug_type":"309"}\n' + json.dumps(body))
    os.utime(file, (stamp, stamp))


def test_the_crash_report_of_our_process_is_found(tmp_path):
    report(tmp_path, "python3.11-2026-01-02-030405.ips", {"pid": 41, "threads": [{"triggered": True}]})
    report(tmp_path, "Safari-2026-01-02-030405.ips", {"pid": 77, "threads": []})
    text = find_crash_report({41}, since=900.0, folders=(tmp_path,))
    assert text.startswith('{"app_name"')
    assert '"pid": 41' in text


def test_older_report_with_the_same_pid_is_ignored(tmp_path):
    report(tmp_path, "python3.11-2026-01-02-030405.ips", {"pid": 41, "threads": []}, stamp=500.0)
    assert find_crash_report({41}, since=900.0, folders=(tmp_path,)) == ""


def test_memory_kill_is_reported_with_its_reason(tmp_path):
    body = {
        "memoryStatus": {"pageSize": 16384},
        "processes": [
            {"pid": 41, "name": "python3.11", "rpages": 1_200_000, "reason": "per-process-limit"},
            {"pid": 42, "name": "Safari", "rpages": 10},
        ],
    }
    report(tmp_path, "JetsamEvent-2026-01-02-030405.ips", body)
    (kill,) = find_jetsam_kills({41, 42}, since=900.0, folders=(tmp_path,))
    assert (kill.pid, kill.name, kill.reason) == (41, "python3.11", "per-process-limit")
    assert kill.resident_bytes == 1_200_000 * 16384


def test_broken_crash_report_is_skipped(tmp_path):
    (tmp_path / "JetsamEvent-x.ips").write_text("not json")
    assert find_jetsam_kills({41}, since=0.0, folders=(tmp_path,)) == []
