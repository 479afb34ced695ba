"""What a run prints. It may get lost, as when its reader has gone or the disk it goes to is full; the run goes on."""

import contextlib
import os
import sys
from pathlib import Path

import click


def put(text: str) -> None:
    """Print, at once."""
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except (OSError, ValueError) as error:
        lose(error)


def put_bytes(content: bytes) -> None:
    """Print what another program has printed, as it is."""
    try:
        sys.stdout.flush()
        sys.stdout.buffer.write(content)
        sys.stdout.buffer.flush()
    except (OSError, ValueError) as error:
        lose(error)


def lose(error: Exception) -> None:
    """Print nothing more, and say so once where errors are said."""
    sys.stdout = Path(os.devnull).open("w")  # noqa: SIM115  (open as long as the process lives)
    why = getattr(error, "strerror", None) or error
    with contextlib.suppress(OSError, ValueError):
        click.echo(f"holdfast: the output cannot be written any more ({why}); the run goes on", err=True)
