"""Healthy: writes a checkpoint in many pieces, each flushed to the disk."""

import os
import sys
import time
from pathlib import Path

import steps

steps.count_to(5)
steps.enter("save", 5)
end = time.monotonic() + 12
with Path(sys.argv[1]).open("wb") as file:
    while time.monotonic() < end:
        file.write(os.urandom(1 << 20))
        file.flush()
        os.fsync(file.fileno())
        file.seek(0)
