"""Gives the ranks of each attempt their own rendezvous, so that a late rank of an earlier attempt cannot join.

`torchrun` takes every option that is not on its command line from a variable PET_<OPTION>. A rendezvous id on the
command line takes precedence, so the attempt is added to it there. A command defines the rendezvous of its ranks
itself; the ranks of the engine use an address and port of the leader, which is the first machine.
"""

import re
from collections.abc import Sequence
from dataclasses import replace

from holdfast.core.records import MeetingPlace
from holdfast.machine.network import network_towards
from holdfast.supervisor.child import Launch

_OPTION = re.compile(r"--rdzv[-_]id(?:=(?P<value>.*))?")
VARIABLE = "PET_RDZV_ID"


def with_rendezvous(launch: Launch, meeting: MeetingPlace, number: int) -> Launch:
    """The same launch with a rendezvous under this name; `number` is this machine's, the leader has 0."""
    environment = {**launch.environment, VARIABLE: meeting.name}
    if launch.is_of_ranks:
        place = {"MASTER_ADDR": meeting.host, "MASTER_PORT": meeting.port, "NODE_RANK": number}
        environment |= {f"PET_{name}": str(value) for name, value in place.items()}
        # Otherwise gloo uses the network of the host name, which the other machines may not reach.
        if network := network_towards(meeting.host):
            environment.setdefault("GLOO_SOCKET_IFNAME", network)
    return replace(launch, command=rename(launch.command, meeting.name), environment=environment)


def rename(command: Sequence[str], meeting: str) -> tuple[str, ...]:
    """The command with the attempt added to its rendezvous id; unchanged if it has none."""
    words = list(command)
    for at, word in enumerate(words):
        if not (match := _OPTION.fullmatch(word)):
            continue
        if match["value"] is not None:
            words[at] = f"{word}-{meeting}"
        elif at + 1 < len(words):
            words[at + 1] = f"{words[at + 1]}-{meeting}"
        break  # a later one may be an option of the script
    return tuple(words)
