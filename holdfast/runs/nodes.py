"""Says who looks after a run and which machines take part in it, on whatever machine one asks.

Of a process of this machine the system says whether it lives. Of another machine's only its notice does, by moving: who
asks for the first time may have to wait for that a few seconds.

Reads: leases/, nodes/*/notice, beats of the newest attempt.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast.core.notice import read_notice
from holdfast.core.runfolder import CHILD, NODES, NOTICE, attempt_folders, part_folder
from holdfast.runs.lease import is_here, is_here_and_gone, newest_lease, seen_lease
from holdfast.supervisor.outcome import newest_beat

_OVER = ("released", "left")
_LOOK_SECONDS = 0.2
_STILL_SECONDS = 6.0  # a notice is said again every two


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeStatus:
    """One machine of a run that several take part in."""

    name: str
    state: str  # "leads", "takes part", "silent", "left"
    step: int  # that its ranks have reached in the newest attempt


@dataclass(frozen=True, slots=True)
class _Last:
    count: int
    since: float  # when it was first seen
    has_moved: bool


_last: dict[Path, _Last] = {}  # what this process has seen of each notice


def read_leader(run: Path) -> Mapping[str, Any] | None:
    """What the living supervisor that leads a run says of itself, wherever it is; None when there is none."""
    return _living(seen_lease(run, newest_lease(run)).path)


def read_nodes(run: Path) -> tuple[NodeStatus, ...]:
    """The machines of a run that several take part in, the leading one first; empty for a run of one machine."""
    names = sorted(folder.name for folder in (run / NODES).glob("*"))
    if len(names) < 2:
        return ()
    lease = seen_lease(run, newest_lease(run)).path
    led_by, is_led = _said(lease).get("node"), _living(lease) is not None
    nodes = [
        NodeStatus(name=name, state=_state(run, name, name == led_by, is_led), step=_step(run, name)) for name in names
    ]
    return tuple(sorted(nodes, key=lambda node: (node.state != "leads", node.name)))


def _state(run: Path, name: str, leads: bool, is_led: bool) -> str:
    if leads and is_led:
        return "leads"
    own = run / NODES / name / NOTICE
    if _living(own):
        return "takes part"
    said = _said(seen_lease(run, newest_lease(run)).path) if leads else _said(own)
    return "left" if said.get("state") in _OVER else "silent"


def _step(run: Path, name: str) -> int:
    """How far a machine's ranks are in the newest attempt; the leading one has its part in the attempt's own folder."""
    attempts = attempt_folders(run)
    if not attempts:
        return 0
    part = part_folder(attempts[-1], name)
    return newest_beat(part if (part / CHILD).exists() else attempts[-1])[1]


def _said(notice: Path) -> Mapping[str, Any]:
    found = read_notice(notice)
    return found.said if found else {}


def _living(path: Path) -> Mapping[str, Any] | None:
    """The notice's words when its writer lives."""
    while True:
        notice = read_notice(path)
        if notice is None or notice.said.get("state") in _OVER or is_here_and_gone(notice.said):
            return None
        if is_here(notice.said):
            return notice.said
        now, last = time.monotonic(), _last.get(path)
        if last is None or last.count != notice.count:
            last = _last[path] = _Last(notice.count, now, has_moved=last is not None)
        if now - last.since > _STILL_SECONDS:
            return None
        if last.has_moved:
            return notice.said
        time.sleep(_LOOK_SECONDS)
