"""Where machines that train together reach each other: addresses, networks and ports. Sends nothing."""

import socket

import psutil

from holdfast.core.env import node_address

_ANYWHERE = "192.0.2.1"  # stands for any other machine: nobody has this address, and nothing is sent to it
_DISCARD = 9


def own_address() -> str:
    """The address that other machines reach this one at: as HOLDFAST_NODE_ADDRESS says, or that of its main network."""
    return node_address() or _address_towards(_ANYWHERE) or socket.gethostname()


def network_towards(host: str) -> str:
    """The name of the network, such as eth0, that leads to a machine; empty where that cannot be told."""
    address = _address_towards(host)
    if _is_loopback(address) and not _is_loopback(host):  # as Debian has it, where a machine looks up its own name
        address = _address_towards(_ANYWHERE)
    found = psutil.net_if_addrs().items() if address else ()
    return next((name for name, has in found if any(one.address == address for one in has)), "")


def free_port() -> int:
    """A port that nobody listens at just now."""
    with socket.socket() as found:
        found.bind(("", 0))
        return int(found.getsockname()[1])


def _is_loopback(host: str) -> bool:
    return host == "localhost" or host.startswith("127.")


def _address_towards(host: str) -> str:
    """The own address that a packet to that machine would carry; empty where no way leads there."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as way:
        try:
            way.connect((host, _DISCARD))  # of datagrams this only asks the system for the way
        except OSError:
            return ""
        return str(way.getsockname()[0])
