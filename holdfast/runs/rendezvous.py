"""Gives the ranks of each attempt a meeting place of their own, so that a late one of an earlier attempt finds nobody.

`torchrun` takes every option it was not given from a variable PET_<OPTION>. An id on its command line wins over that,
so there the attempt's number is added to it.
"""

import re
from collections.abc import Sequence
from dataclasses import replace

from holdfast.supervisor.child import Launch

_OPTION = re.compile(r"--rdzv[-_]id(?:=(?P<value>.*))?")
VARIABLE = "PET_RDZV_ID"


def with_rendezvous(launch: Launch, meeting: str) -> Launch:
    """The same launch, whose ranks meet under this name only."""
    environment = {**launch.environment, VARIABLE: meeting}
    return replace(launch, command=rename(launch.command, meeting), environment=environment)


def rename(command: Sequence[str], meeting: str) -> tuple[str, ...]:
    """The command with the attempt's name added to the rendezvous id it was given; unchanged where it has none."""
    words = list(command)
    for at, word in enumerate(words):
        if not (match := _OPTION.fullmatch(word)):
            continue
        if match["value"] is not None:
            words[at] = f"{word}-{meeting}"
        elif at + 1 < len(words):
            words[at + 1] = f"{words[at + 1]}-{meeting}"
        break  # what comes later may be the script's own
    return tuple(words)
