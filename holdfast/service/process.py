"""Starts one of the service's processes with Django ready: `python -m holdfast.service.process keeper|dispatcher`."""

import os
import sys
from importlib import import_module

import django

PROCESSES = ("keeper", "dispatcher")


def command_of(name: str, *arguments: str) -> list[str]:
    """What to start for one of them."""
    return [sys.executable, "-m", "holdfast.service.process", name, *arguments]


def set_up() -> None:
    """Make Django's parts usable in this process."""
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "holdfast.service.settings")
    django.setup()


if __name__ == "__main__":
    assert sys.argv[1] in PROCESSES
    set_up()
    import_module(f"holdfast.service.{sys.argv[1]}").main(*sys.argv[2:])
