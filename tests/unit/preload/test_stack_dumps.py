"""The supervisor's tools are let in where the system would keep them out."""

import pytest
from holdfast_preload import script_settings, stack_dumps


@pytest.fixture
def asked(attempt, tmp_path, monkeypatch):
    """What the kernel is asked under a rule of the given kind."""

    def ask(scope: str) -> list[tuple[int, ...]]:
        calls: list[tuple[int, ...]] = []
        rule = tmp_path / "ptrace_scope"
        rule.write_text(scope)
        monkeypatch.setattr(stack_dumps, "_YAMA", str(rule))
        monkeypatch.setattr(stack_dumps, "_prctl", None)
        script_settings._given["supervisor"] = 4242
        stack_dumps._find_prctl()
        if stack_dumps._prctl is not None:
            monkeypatch.setattr(stack_dumps, "_prctl", lambda *arguments: calls.append(arguments))
        stack_dumps._allow_supervisor()
        return calls

    return ask


def test_ptrace_is_allowed_only_for_the_supervisor(asked):
    assert asked("1\n") == [(0x59616D61, 4242, 0, 0, 0)]


def test_permissive_ptrace_scope_is_left_alone(asked):
    assert asked("0\n") == []
