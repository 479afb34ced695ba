"""Keeps a Mac awake for the length of a run.

`caffeinate -is` and not `-dis`: with the display kept on, kernels have panicked (ml-explore/mlx#3267).
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def kept_awake() -> Iterator[None]:
    """Hold off idle sleep while the body runs; does nothing on other systems."""
    if sys.platform != "darwin":
        yield
        return
    try:
        helper = subprocess.Popen(
            ["caffeinate", "-is", "-w", str(os.getpid())], stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
    except OSError:
        helper = None
    try:
        yield
    finally:
        if helper:
            helper.terminate()
            helper.wait()
