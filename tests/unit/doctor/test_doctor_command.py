"""The command itself: what goes to stdout, which exit code, and what is asked before a change."""

import json

import pytest
from click.testing import CliRunner

from holdfast.cli.doctor import doctor
from holdfast.core.errors import RequestError
from holdfast.core.facts import MachineFacts
from holdfast.doctor import machine_checkup
from holdfast.doctor.checkup import Checkup, Finding
from holdfast.doctor.sections import SECTIONS

FACTS = MachineFacts(os="linux", os_version="Debian 12", sources={"os": "sys.platform"})
BLOCKER = Finding(slug="some-thing", severity="blocker", seen="it cannot")


@pytest.fixture
def machine(monkeypatch):
    """Replace the machine by one with these findings."""

    def be(*findings):
        def check_machine(limit_seconds, *, on_section, on_wait):
            be.limit_seconds = limit_seconds
            on_wait(["trials"], 9.0)
            for section in SECTIONS:
                on_section(section, FACTS)
            return Checkup(facts=FACTS, findings=findings)

        monkeypatch.setattr(machine_checkup, "check_machine", check_machine)
        return be

    return be


def run(*arguments, **more):
    return CliRunner().invoke(doctor, list(arguments), **more)


def test_healthy_machine_exits_0_and_lists_checks(machine):
    machine()
    result = run()
    assert result.exit_code == 0
    assert "checking" in result.stdout.splitlines()[0]
    assert "[ok] Debian 12" in result.stdout
    assert result.stderr == ""


def test_a_blocker_exits_3(machine):
    machine(BLOCKER)
    result = run()
    assert result.exit_code == 3
    (line,) = [line for line in result.stdout.splitlines() if BLOCKER.slug in line and line.startswith("[x]")]
    assert BLOCKER.seen in line


def test_json_is_alone_on_stdout(machine):
    machine(BLOCKER)
    result = run("--json")
    assert list(json.loads(result.stdout)) == ["facts", "findings", "unanswered"]
    assert result.exit_code == 3


def test_trial_time_limit_must_be_a_number(machine):
    be = machine()
    run("--device-timeout", "7")
    assert be.limit_seconds == 7
    assert run("--device-timeout", "-1").exit_code == 2
    assert run("--device-timeout", "soon").exit_code == 2


def test_missing_folder_is_a_request_error(tmp_path):
    result = run("--env", str(tmp_path / "missing"))
    assert isinstance(result.exception, RequestError)
    assert "missing" in result.exception.what
