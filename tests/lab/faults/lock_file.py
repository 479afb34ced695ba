"""Wants a file lock that another program holds."""

import fcntl
import sys
from pathlib import Path

import steps

steps.count_to(20)
with Path(sys.argv[1]).open("w") as file:
    fcntl.flock(file, fcntl.LOCK_EX)
