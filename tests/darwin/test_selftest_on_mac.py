"""The self-test's parts about the system, on a pretended macOS: its tools are asked, and what they leave is packed."""

import stat
import sys
import time
from pathlib import Path

import pytest

from holdfast.machine.trials import Children
from holdfast.selftest.system_parts import ask_tools, read_heartbeat, tell_processes_apart
from holdfast.selftest.workplace import Workplace

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="pretends a macOS on Linux")
SERIAL = '"IOPlatformSerialNumber" = "C02XG0JHJG5H"'
ANSWERS = {
    "ps": "USER PID TT %CPU STAT PRI STIME UTIME COMMAND\nme 4711 ?? 0.0 S 31T 0:00.00 0:00.01 python",
    "sample": "Call graph:\n    2 Thread_4711   DispatchQueue_1: com.apple.main-thread  (serial)",
    "sysctl": "17179869184\n11111111-2222-3333-4444-555555555555",
    "vm_stat": "Mach Virtual Memory Statistics: (page size of 16384 bytes)\nPages free: 4711.",
    "sw_vers": "ProductVersion: 15.5",
    "pmset": "Currently in use:\n sleep 1",
    "ioreg": SERIAL,
    "caffeinate": "",
}


@pytest.fixture
def place(tmp_path):
    made = Workplace(tmp_path, Children(), deadline=time.monotonic() + 60)
    yield made
    made.children.stop()


@pytest.fixture
def tools(tmp_path, monkeypatch) -> Path:
    folder = tmp_path / "bin"
    folder.mkdir()
    for name, answer in ANSWERS.items():
        put_tool(folder / name, f"cat <<'END'\n{answer}\nEND")
    put_tool(folder / "caffeinate", "true")
    monkeypatch.setenv("PATH", str(folder), prepend=":")
    return folder


def put_tool(file: Path, script: str) -> None:
    file.write_text(f"#!/bin/sh\n{script}\n")
    file.chmod(file.stat().st_mode | stat.S_IXUSR)


def test_every_tool_is_timed_and_serial_numbers_are_not_kept(place, tools, mac):
    found = ask_tools(place)
    assert found.state == "ok", found.summary
    assert found.facts["seconds"].keys() == {*ANSWERS, "process table"}
    kept = {file.stem: file.read_text() for file in (place.folder / "tools").iterdir()}
    assert kept.keys() == {"ps", "sample", "vm_stat"}
    assert not any("C02XG0JHJG5H" in text for text in kept.values())


@pytest.mark.parametrize(("broken", "state"), [("sample", "failed"), ("ps", "failed"), ("pmset", "ok")])
def test_a_tool_that_fails_is_named(place, tools, mac, broken, state):
    put_tool(tools / broken, "echo not permitted >&2; exit 1")
    found = ask_tools(place)
    assert found.state == state
    assert found.facts["seconds"][broken] is None
    assert any("not permitted" in problem for problem in found.facts["problems"])


def test_processes_are_told_apart_by_libproc(place, mac):
    found = tell_processes_apart(place)
    assert found.state == "ok", found.summary
    assert found.facts["computing"]["cpu_seconds"] > found.facts["waiting"]["cpu_seconds"]


def test_heartbeat_is_read(place, mac):
    assert read_heartbeat(place).state == "ok"
