"""Child processes of the service: one that has Django ready, and one that ends with its parent.

    python -m holdfast.service.child_process agent|dispatcher ARGUMENTS
    python -m holdfast.service.child_process end-with PID COMMAND...

On Linux the kernel kills the child when its parent dies; elsewhere a process between the two waits for that.
"""

import os
import signal
import subprocess
import sys
from importlib import import_module

from holdfast.core.parent_death import call_at_exit_of, end_with_parent

_END_WITH = "end-with"
_NAMES = ("agent", "dispatcher")
_SETTINGS = "holdfast.service.settings"


def command_of(name: str, *arguments: str) -> list[str]:
    """The command that starts one of the service's own processes."""
    return [sys.executable, "-m", "holdfast.service.child_process", name, *arguments]


def ending_with_us(command: list[str]) -> list[str]:
    """The same command, started so that it dies with this process."""
    return command_of(_END_WITH, str(os.getpid()), *command)


def set_up(*, is_light: bool = False) -> None:
    """Set up Django in this process; a light one serves no pages."""
    import django

    os.environ.setdefault("DJANGO_SETTINGS_MODULE", _SETTINGS)
    if is_light and os.environ["DJANGO_SETTINGS_MODULE"] == _SETTINGS:
        os.environ["DJANGO_SETTINGS_MODULE"] = "holdfast.service.light_settings"
    django.setup()


def _end_with(parent_pid: int, command: list[str]) -> None:
    """Become the command, or watch over it."""
    if sys.platform == "linux":
        end_with_parent(signal.SIGKILL, parent_pid)  # survives the exec
        os.execv(command[0], command)
    child = subprocess.Popen(command)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda asked, _: child.send_signal(asked))
    call_at_exit_of(parent_pid, child.kill)
    raise SystemExit(child.wait())


if __name__ == "__main__":
    if sys.argv[1] == _END_WITH:
        _end_with(int(sys.argv[2]), sys.argv[3:])
    else:
        assert sys.argv[1] in _NAMES
        set_up(is_light=True)
        import_module(f"holdfast.service.{sys.argv[1]}").main(*sys.argv[2:])
