"""Addresses, networks and ports by which machines of one run reach each other. Sends nothing."""

import socket

import psutil

from holdfast.core.env import node_address

_ANYWHERE = "192.0.2.1"  # any other machine: an address reserved for documentation, to which nothing is sent
_DISCARD = 9


def own_address() -> str:
    """The address of this machine for others: HOLDFAST_NODE_ADDRESS, or that of its main network."""
    return node_address() or _address_towards(_ANYWHERE) or socket.gethostname()


def network_towards(host: str) -> str:
    """The name of the network interface, such as eth0, that leads to a machine; empty if unknown."""
    address = _address_towards(host)
    if _is_loopback(address) and not _is_loopback(host):  # Debian resolves a machine's own name to the loopback address
        address = _address_towards(_ANYWHERE)
    found = psutil.net_if_addrs().items() if address else ()
    return next((name for name, has in found if any(one.address == address for one in has)), "")


def free_port() -> int:
    """A port that is free at the moment."""
    with socket.socket() as found:
        found.bind(("", 0))
        return int(found.getsockname()[1])


def _is_loopback(host: str) -> bool:
    return host == "localhost" or host.startswith("127.")


def _address_towards(host: str) -> str:
    """The source address of a packet to that machine; empty if it cannot be reached."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as way:
        try:
            way.connect((host, _DISCARD))  # for datagrams, this only looks up the route
        except OSError:
            return ""
        return str(way.getsockname()[0])
