"""Becomes the command it is given, after asking the kernel to end it when its parent dies.

Started as `python -I -S launch.py PARENT_PID COMMAND...` and gone after exec: the pid stays the same. It exists because
code between fork and exec in the supervisor itself could deadlock there when the supervisor has threads.
"""

import os
import signal
import sys

_PR_SET_PTRACER = 0x59616D61
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

    # Where only ancestors may look into a process (Yama, Ubuntu's default): also the tools that our parent starts.
    ctypes.CDLL(None).prctl(_PR_SET_PTRACER, parent_pid, 0, 0, 0)
    core = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "core")  # noqa: PTH118, PTH120, PTH100
    sys.path.append(core)  # this interpreter is isolated: nothing of Holdfast can be imported by name
    from parent_death import end_with_parent  # type: ignore[import-not-found]

    end_with_parent(signal.SIGTERM, parent_pid)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
