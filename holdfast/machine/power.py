"""Power and sleep on a Mac: a machine that sleeps stops every run on it."""

import re
import sys

from holdfast.core.facts import Answer, Power
from holdfast.machine.commands import output_of


def probe_power() -> Answer[Power | None]:
    """Whether a Mac runs on battery, when it falls asleep, and whether it saves power."""
    if sys.platform != "darwin":
        return Answer(None, "asked on macOS only")
    return Answer(read_power(output_of("pmset", "-g", "batt"), output_of("pmset", "-g")), "pmset -g")


def read_power(battery: str, settings: str) -> Power:
    """Read `pmset -g batt` and `pmset -g`, which shows the settings of the source in use."""
    minutes = _setting(settings, "sleep")
    return Power(
        on_battery="'Battery Power'" in battery,
        sleep_after_minutes=minutes or None,  # 0 means never
        low_power_mode=_setting(settings, "lowpowermode") == 1,
    )


def _setting(settings: str, name: str) -> int | None:
    found = re.search(rf"^\s*{name}\s+(\d+)\b", settings, re.MULTILINE)
    return int(found[1]) if found else None
