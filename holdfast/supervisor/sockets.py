"""Asks the kernel about sockets: who is at the other end, and when the last byte came in.

By the kernel's socket diagnosis (what `ss -ti` uses; needs no privilege). Where that is not to be had, from
/proc/net/tcp, which knows the ends and not the times.
"""

import ipaddress
import os
import socket
import struct
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

ESTABLISHED, CONNECTING, LISTENING = 1, 2, 10

_NETLINK_SOCK_DIAG, _SOCK_DIAG_BY_FAMILY = 4, 20
_DUMP, _DONE, _ERROR = 0x301, 3, 2  # REQUEST | ROOT | MATCH
_HEADER = struct.Struct("=IHHII")  # length, type, flags, sequence, port
_ID = struct.Struct("!HH16s16s")  # ports and addresses, in network order
_INET_INFO, _UNIX_PEER = 2, 2
_RETRANSMITS, _PROBES, _LAST_DATA_RECEIVED = 2, 3, 52  # offsets in struct tcp_info; the last in milliseconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Socket:
    """One socket as the kernel describes it."""

    inode: int
    state: int = ESTABLISHED
    local: str = ""  # "127.0.0.1:8443"; empty for a socket with no address
    remote: str = ""
    silent_seconds: float | None = None  # since the last byte came in
    is_lost: bool = False  # what was sent had to be sent again, and nothing acknowledges it
    peer_inode: int = 0  # of a local socket's other end


def read_sockets() -> dict[int, Socket]:
    """Every TCP and local socket of this network namespace, by inode."""
    try:
        found = [*_tcp_by_diagnosis(), *_unix_by_diagnosis()]
    except (OSError, AttributeError):  # no netlink on this system, or not allowed
        found = list(_tcp_by_proc())
    return {item.inode: item for item in found if item.inode}


def _tcp_by_diagnosis() -> Iterator[Socket]:
    for family in (socket.AF_INET, socket.AF_INET6):
        # struct inet_diag_req_v2: family, protocol, extensions, padding, states, an empty id
        request = struct.pack("=BBBBI", family, socket.IPPROTO_TCP, 1 << (_INET_INFO - 1), 0, 0xFFFFFFFF) + bytes(48)
        for message in _ask(request):
            state = message[1]
            source_port, target_port, source, target = _ID.unpack_from(message, 4)
            (inode,) = struct.unpack_from("=I", message, 68)
            info = dict(_attributes(message, 72)).get(_INET_INFO, b"")
            is_lost = len(info) >= 4 and (info[_RETRANSMITS] > 0 or info[_PROBES] > 1)
            silent = struct.unpack_from("=I", info, _LAST_DATA_RECEIVED)[0] / 1000 if len(info) >= 56 else None
            yield Socket(
                inode=inode,
                state=state,
                local=_address(family, source, source_port),
                remote=_address(family, target, target_port),
                silent_seconds=silent,
                is_lost=is_lost,
            )


def _unix_by_diagnosis() -> Iterator[Socket]:
    # struct unix_diag_req: family, protocol, padding, states, inode, what to show (name, peer), cookie
    request = struct.pack("=BBHIII8s", socket.AF_UNIX, 0, 0, 0xFFFFFFFF, 0, 0x1 | 0x4, b"\xff" * 8)
    for message in _ask(request):
        state, (inode,) = message[2], struct.unpack_from("=I", message, 4)
        attributes = dict(_attributes(message, 16))
        peer = struct.unpack("=I", attributes[_UNIX_PEER])[0] if _UNIX_PEER in attributes else 0
        name = attributes.get(0, b"").replace(b"\0", b"@").decode(errors="replace")
        yield Socket(inode=inode, state=state, local=name, peer_inode=peer)


def _ask(request: bytes) -> Iterator[bytes]:
    """Send one request and give the body of each answer."""
    if sys.platform != "linux":
        return
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _NETLINK_SOCK_DIAG) as asked:
        asked.settimeout(1)
        asked.send(_HEADER.pack(_HEADER.size + len(request), _SOCK_DIAG_BY_FAMILY, _DUMP, 1, 0) + request)
        while True:
            answer = asked.recv(1 << 18)
            at = 0
            while at + _HEADER.size <= len(answer):
                length, kind, *_ = _HEADER.unpack_from(answer, at)
                if kind == _DONE or length < _HEADER.size:
                    return
                if kind == _ERROR:
                    (code,) = struct.unpack_from("=i", answer, at + _HEADER.size)
                    raise OSError(-code, os.strerror(-code))
                yield answer[at + _HEADER.size : at + length]
                at += (length + 3) & ~3


def _attributes(message: bytes, at: int) -> Iterator[tuple[int, bytes]]:
    while at + 4 <= len(message):
        length, kind = struct.unpack_from("=HH", message, at)
        if length < 4:
            return
        yield kind, message[at + 4 : at + length]
        at += (length + 3) & ~3


def _address(family: int, raw: bytes, port: int) -> str:
    if family == socket.AF_INET:
        return f"{ipaddress.IPv4Address(raw[:4])}:{port}"
    address = ipaddress.IPv6Address(raw)
    return f"{address.ipv4_mapped}:{port}" if address.ipv4_mapped else f"[{address}]:{port}"


def _tcp_by_proc() -> Iterator[Socket]:
    for name, family in (("tcp", socket.AF_INET), ("tcp6", socket.AF_INET6)):
        try:
            lines: Iterable[str] = Path(f"/proc/net/{name}").read_text(encoding="ascii").splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            words = line.split()
            yield Socket(
                inode=int(words[9]),
                state=int(words[3], 16),
                local=_proc_address(family, words[1]),
                remote=_proc_address(family, words[2]),
            )


def _proc_address(family: int, text: str) -> str:
    """An address as /proc writes it: words of four bytes in the machine's own order."""
    host, port = text.split(":")
    raw = b"".join(struct.pack("=I", int(host[at : at + 8], 16)) for at in range(0, len(host), 8))
    return _address(family, raw, int(port, 16))
