"""Runs a command that ends with the process that started it: `python -m holdfast.service.tied PID COMMAND...`.

Linux tells the child itself of its parent's death; elsewhere a process between the two looks once a second.
"""

import ctypes
import os
import signal
import subprocess
import sys
import time

_PR_SET_PDEATHSIG = 1


def main(parent_pid: int, command: list[str]) -> None:
    """Become the command, or watch over it."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)  # outlives the exec below
        if os.getppid() == parent_pid:
            os.execv(command[0], command)
        return
    child = subprocess.Popen(command)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda asked, _: child.send_signal(asked))
    while child.poll() is None:
        if os.getppid() != parent_pid:
            child.kill()
        time.sleep(1.0)
    raise SystemExit(child.returncode)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
