"""What a run prints. Output that cannot be written, as to a full disk, never ends the run."""

import contextlib
import os
import sys
from pathlib import Path

import click


def put(text: str) -> None:
    """Print at once."""
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except (OSError, ValueError) as error:
        stop_printing(error)


def put_bytes(content: bytes) -> None:
    """Print what another program has printed, as it is."""
    try:
        sys.stdout.flush()
        sys.stdout.buffer.write(content)
        sys.stdout.buffer.flush()
    except (OSError, ValueError) as error:
        stop_printing(error)


def stop_printing(error: Exception) -> None:
    """Print nothing more, and report that once on standard error."""
    sys.stdout = Path(os.devnull).open("w")  # noqa: SIM115  (open as long as the process lives)
    why = getattr(error, "strerror", None) or error
    with contextlib.suppress(OSError, ValueError):
        click.echo(f"holdfast: the output cannot be written any more ({why}); the run continues", err=True)
