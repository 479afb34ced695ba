"""Becomes the command it is given, after asking the kernel to end it when its parent dies.

Started as `python -I -S launch.py PARENT_PID COMMAND...` and gone after exec: the pid stays the same. It exists because
code between fork and exec in the supervisor itself could deadlock there when the supervisor has threads.
"""

import os
import signal
import sys

_PR_SET_PDEATHSIG, _PR_SET_PTRACER = 1, 0x59616D61
_NOT_FOUND, _NOT_RUNNABLE = 127, 126  # what shells say


def main(parent_pid: int, command: list[str]) -> None:
    """Replace this process by the command."""
    if sys.platform == "linux":
        _die_with(parent_pid)
    # Started from a shell's background or under nohup, we inherit ignored signals; the command is to hear them.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    try:
        os.execvp(command[0], command)
    except OSError as error:
        print(f"holdfast: {command[0]} cannot be started: {error.strerror}", file=sys.stderr, flush=True)
        os._exit(_NOT_FOUND if isinstance(error, FileNotFoundError) else _NOT_RUNNABLE)


def _die_with(parent_pid: int) -> None:
    import ctypes

    prctl = ctypes.CDLL(None).prctl
    prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0)
    # Where only ancestors may look into a process (Yama, Ubuntu's default): also the tools that our parent starts.
    prctl(_PR_SET_PTRACER, parent_pid, 0, 0, 0)
    if os.getppid() != parent_pid:  # it died before we asked
        os._exit(128 + signal.SIGTERM)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
