"""Starts one of the service's processes with Django ready: `python -m holdfast.service.process keeper|dispatcher`."""

import os
import sys
from importlib import import_module

import django

PROCESSES = ("keeper", "dispatcher")
_SETTINGS = "holdfast.service.settings"


def command_of(name: str, *arguments: str) -> list[str]:
    """What to start for one of them."""
    return [sys.executable, "-m", "holdfast.service.process", name, *arguments]


def set_up(*, is_light: bool = False) -> None:
    """Make Django's parts usable in this process; a light one serves no pages."""
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", _SETTINGS)
    if is_light and os.environ["DJANGO_SETTINGS_MODULE"] == _SETTINGS:
        os.environ["DJANGO_SETTINGS_MODULE"] = "holdfast.service.light_settings"
    django.setup()


if __name__ == "__main__":
    assert sys.argv[1] in PROCESSES
    set_up(is_light=True)
    import_module(f"holdfast.service.{sys.argv[1]}").main(*sys.argv[2:])
