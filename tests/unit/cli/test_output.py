"""Output that cannot be printed never ends a run."""

import errno
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from holdfast.cli import cli, main
from holdfast.cli.output import put
from holdfast.cli.screen import EventLines, RunView, Screen
from holdfast.core.events import StorageRestored, StorageTrouble

FULL = Path("/dev/full")
pytestmark = pytest.mark.skipif(not FULL.exists(), reason="Linux only")


@contextmanager
def full_output(patch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let standard output go to a full disk."""
    with FULL.open("w") as file, Path(os.devnull).open("w") as nowhere, patch.context() as patched:
        patched.setattr("sys.stdout", file)
        yield
        os.dup2(nowhere.fileno(), file.fileno())  # what still lies in it could not be written when it is closed


def test_lost_output_is_reported_once(monkeypatch, capsys):
    with full_output(monkeypatch):
        for number in range(3):
            put(f"line {number}\n")
    assert capsys.readouterr().err.count("No space left on device") == 1


@pytest.mark.parametrize("make_view", [lambda: RunView(Screen()), EventLines])
def test_a_run_whose_output_is_lost_continues(monkeypatch, make_view):
    with full_output(monkeypatch):
        view = make_view()
        view(StorageTrouble(error="something"))
        view(StorageRestored())
        view.close()


def test_a_lost_answer_is_an_error():
    with FULL.open("w") as full:
        ended = subprocess.run(
            [sys.executable, "-m", "holdfast", "--help"], stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert ended.returncode == 3
    assert "[disk-full]" in ended.stderr.splitlines()[0]
    assert "No space left on device" in ended.stderr.splitlines()[1]


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (OSError(errno.ENOSPC, "why"), "error: a file could not be written   [disk-full]\n  found  why\n"),
        (OSError(errno.EDQUOT, "why"), "error: a file could not be written   [disk-full]\n  found  why\n"),
        (OSError(errno.EDQUOT, "why", "/disk/x"), "error: a file could not be written: /disk/x   [disk-full]\n"),
    ],
)
def test_a_full_disk_elsewhere_is_not_blamed_on_the_output(monkeypatch, capsys, error, words):
    def refuse(context: object) -> None:
        raise error

    monkeypatch.setattr(cli, "invoke", refuse)
    monkeypatch.setattr("sys.argv", ["holdfast", "memory"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 3
    assert capsys.readouterr().err.startswith(words)


def test_a_pipe_broken_elsewhere_is_a_bug(monkeypatch, capsys):
    def refuse(context: object) -> None:
        raise BrokenPipeError(errno.EPIPE, "Broken pipe")

    monkeypatch.setattr(cli, "invoke", refuse)
    monkeypatch.setattr("sys.argv", ["holdfast", "memory"])
    with pytest.raises(BrokenPipeError):
        main()
    assert "bug" in capsys.readouterr().err
