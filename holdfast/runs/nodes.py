"""Who supervises a run and which machines belong to it; works on any of these machines.

For a process on this machine the system says whether it is alive. For one on another machine, only changes of its
notice show that, so a single read cannot tell. `MachineWatch` never waits and trusts a notice until it stops changing;
`read_leader` looks again until it knows, which may take a few seconds.

Reads: leases/, nodes/*/notice, beats of the newest attempt.
"""

import time
from dataclasses import dataclass
from pathlib import Path

from holdfast.core.notice import read_notice
from holdfast.core.records import SupervisorNotice
from holdfast.core.runfolder import CHILD, NODES, NOTICE, attempt_folders, part_folder
from holdfast.runs.lease import is_here, is_here_and_gone, newest_lease, seen_lease
from holdfast.supervisor.outcome import newest_beat

_LOOK_SECONDS = 0.2
_STILL_SECONDS = 6.0  # a notice is renewed every two seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeStatus:
    """One machine of a run on several machines."""

    name: str
    state: str  # "leads", "takes part", "silent", "left"
    step: int  # that its ranks have reached in the newest attempt


@dataclass(frozen=True, slots=True)
class _LastLook:
    count: int
    since: float  # when it was first seen
    has_moved: bool


class MachineWatch:
    """The machines of one run, read repeatedly without waiting."""

    def __init__(self, run: Path):
        self._run = run
        self._looks: dict[Path, _LastLook] = {}
        self.is_sure = True  # False when the last answer rests on a notice that has not been seen to move yet

    def leader(self) -> SupervisorNotice | None:
        """The notice of the supervisor that leads the run, on any machine; None if there is none."""
        self.is_sure = True
        return self._living(self._lease)

    def nodes(self) -> tuple[NodeStatus, ...]:
        """The machines of a run, leader first; empty for a run on one machine."""
        self.is_sure = True
        names = sorted(folder.name for folder in (self._run / NODES).glob("*"))
        if len(names) < 2:
            return ()
        leader, is_led = _node(self._lease), self._living(self._lease) is not None
        nodes = [
            NodeStatus(name=name, state=self._state(name, name == leader, is_led), step=_step(self._run, name))
            for name in names
        ]
        return tuple(sorted(nodes, key=lambda node: (node.state != "leads", node.name)))

    @property
    def _lease(self) -> Path:
        return seen_lease(self._run, newest_lease(self._run)).path

    def _state(self, name: str, leads: bool, is_led: bool) -> str:
        if leads and is_led:
            return "leads"
        own = self._run / NODES / name / NOTICE
        if self._living(own):
            return "takes part"
        notice = read_notice(self._lease if leads else own, SupervisorNotice)
        return "left" if notice and notice.said.is_over else "silent"

    def _living(self, path: Path) -> SupervisorNotice | None:
        """The content of a notice, unless its writer is known to be gone."""
        notice = read_notice(path, SupervisorNotice)
        if notice is None or notice.said.is_over or is_here_and_gone(notice.said):
            return None
        if is_here(notice.said):
            return notice.said
        now, last = time.monotonic(), self._looks.get(path)
        if last is None or last.count != notice.count:
            last = self._looks[path] = _LastLook(notice.count, now, has_moved=last is not None)
        if now - last.since > _STILL_SECONDS:
            return None
        self.is_sure = self.is_sure and last.has_moved
        return notice.said


def read_leader(run: Path) -> SupervisorNotice | None:
    """The notice of the supervisor that leads a run; takes up to six seconds if that is on another machine."""
    watch = MachineWatch(run)
    while True:
        leader = watch.leader()
        if watch.is_sure:
            return leader
        time.sleep(_LOOK_SECONDS)


def _step(run: Path, name: str) -> int:
    """How far a machine's ranks are in the newest attempt; the leading one has its part in the attempt's own folder."""
    attempts = attempt_folders(run)
    if not attempts:
        return 0
    part = part_folder(attempts[-1], name)
    return newest_beat(part if (part / CHILD).exists() else attempts[-1])[1]


def _node(path: Path) -> str:
    notice = read_notice(path, SupervisorNotice)
    return notice.said.node if notice else ""
