"""The host names and addresses that the service accepts.

Any other name in the Host header of a request is refused. Otherwise another website could point its own name at this
address, and browsers would let its scripts read our pages (DNS rebinding).
"""

import ipaddress
import socket
from collections.abc import Iterator, Sequence

import psutil

LOOPBACK = ("localhost", "127.0.0.1", "[::1]")
_EVERYWHERE = ("0.0.0.0", "::")


def hosts_of(host: str, more: Sequence[str] = ()) -> tuple[str, ...]:
    """The Host headers to accept when serving at this address, with additional names."""
    found = [*LOOPBACK]
    if host in _EVERYWHERE:
        found += [socket.gethostname(), socket.getfqdn(), *_own_addresses()]
    else:
        found.append(_as_in_a_url(host))
    named = (name.strip().lower() for name in (*found, *more))
    return tuple(dict.fromkeys(name for name in named if name))


def _own_addresses() -> Iterator[str]:
    for addresses in psutil.net_if_addrs().values():
        for one in addresses:
            if one.family in (socket.AF_INET, socket.AF_INET6) and "%" not in one.address:
                yield _as_in_a_url(one.address)


def _as_in_a_url(host: str) -> str:
    try:
        is_wide = ipaddress.ip_address(host).version == 6
    except ValueError:  # a name
        return host
    return f"[{host}]" if is_wide else host
