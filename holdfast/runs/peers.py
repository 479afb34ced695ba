"""The machines of a run as the leader sees them: which have joined, what each must do, how each part ended.

The machines communicate through two kinds of notices on shared storage, each with one writer: the leader's lease says
which attempt runs, on which machines, and when it is called off; `nodes/NAME/notice` of each other machine says that it
is alive and how its part went. No machine waits forever: one that is silent for the length of the lease is given up.

Reads: nodes/*/notice. Writes: the leader's notice.
"""

import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from msgspec import structs

from holdfast.core.env import lease_seconds, node_name
from holdfast.core.errors import MachineError, NotNow
from holdfast.core.event_log import EventSink
from holdfast.core.events import Event, MachinesAwaited, Ticked
from holdfast.core.evidence import Diagnosis
from holdfast.core.notice import Seen
from holdfast.core.records import MeetingPlace, MemberNotice, Outcome
from holdfast.core.runfolder import NODES, NOTICE, attempt_folder, part_folder
from holdfast.core.settings import DEFAULT_NODES_WAIT
from holdfast.core.text import human_seconds, plural
from holdfast.machine.network import free_port, own_address
from holdfast.runs.joint_outcome import JointAttempt, NodePart, judge
from holdfast.runs.lease import Lease
from holdfast.runs.rendezvous import with_rendezvous
from holdfast.supervisor.attempt import CallOff, StopRequest
from holdfast.supervisor.child import Launch
from holdfast.supervisor.collect import read_attempt_evidence
from holdfast.supervisor.ladder import Changes

_LOOK_SECONDS = 0.3
_REPORT_SECONDS = 120.0  # time for the parts of a canceled attempt to collect evidence, save and end
_SAY_FIRST_SECONDS, _SAY_SECONDS = 2.0, 30.0


class Peers:
    """The other machines of a run, for the supervisor that leads it."""

    def __init__(self, run: Path, nodes: int, lease: Lease, wait_seconds: float = DEFAULT_NODES_WAIT):
        self._run, self._nodes, self._lease, self._wait_seconds = run, nodes, lease, wait_seconds
        self._me = node_name()
        self._seen: dict[str, Seen[MemberNotice]] = {}
        self._call = _Call()
        self._looked_at = float("-inf")
        self._has_not_met = self._had_not_met = False  # the ranks of this attempt; of the one before

    def interrupting(self, stop: StopRequest) -> EventSink:
        """A listener that treats Ctrl-C on another machine like one here, while the run is planned."""

        def hear(event: Event) -> None:
            self._look()
            self._hear_interrupt(stop)

        return hear

    def gather(self, report: EventSink, stop: StopRequest) -> bool:
        """Wait until enough machines have joined; False if a stop was requested meanwhile."""
        begun = time.monotonic()
        say_at, said = begun + _SAY_FIRST_SECONDS, ""
        while True:
            self._look(at_once=True)
            self._hear_interrupt(stop)
            here = self._present()
            if self._lease.is_lost or stop.is_asked:
                return False
            if len(here) >= self._nodes - 1:
                return True
            waited, missing = time.monotonic() - begun, self._nodes - 1 - len(here)
            words = f"{1 + len(here)} of {self._nodes} machines have joined ({', '.join((self._me, *here))})"
            if waited > self._wait_seconds:
                raise NotNow(
                    f"{plural(missing, 'machine')} of {self._nodes} did not join within {human_seconds(waited)}",
                    found=words + self._last_seen(here),
                    try_next=(
                        f"holdfast resume {self._run}, and the same command on the others: it joins this run",
                        "--nodes-wait SECONDS, to wait longer",
                    ),
                )
            if time.monotonic() > say_at or words != (said or words):
                say_at, said = time.monotonic() + _SAY_SECONDS, words
                report(
                    MachinesAwaited(
                        present=[self._me, *here], wanted=self._nodes, seconds_left=self._wait_seconds - waited
                    )
                )
            report(Ticked())
            time.sleep(_LOOK_SECONDS)

    def call(self, number: int, changes: Changes, resume: bool, launch: Launch) -> Launch:
        """Let the machines begin an attempt; return this machine's own part of it."""
        self._had_not_met, self._has_not_met = self._has_not_met, False
        others = self._present()[: self._nodes - 1]
        meeting = MeetingPlace(name=f"{self._run.name}-{self._lease.number}-{number}")
        if launch.is_of_ranks:
            meeting = structs.replace(meeting, host=own_address(), port=free_port())
        self._call = _Call(number, others, {node: self._notice(node).writer for node in others}, meeting=meeting)
        nodes = (self._me, *others)
        self._lease.say(attempt=number, nodes=nodes, changes=changes, resume=resume, meeting=meeting, end="")
        return with_rendezvous(launch, meeting, 0)

    def listen(self, stop: StopRequest, part_stop: StopRequest) -> Callable[[], CallOff]:
        """Checked many times a second during an attempt: whether the others still run. Passes stop requests on."""

        def called_off() -> CallOff:
            if self._lease.is_lost:
                return "end"
            self._look()
            self._pass_stop_on(stop)
            while part_stop.count < self._call.stops:
                part_stop.ask(self._call.signal)
            outcomes = [self._outcome(node) for node in self._call.nodes]
            if any(one and one.outcome == "hung" for one in outcomes):
                return "look"
            has_failed = any(one and one.outcome in ("died", "interrupted", "stopped") for one in outcomes)
            return "end" if has_failed or any(map(self._is_silent, self._call.nodes)) else ""

        return called_off

    def settle(
        self, outcome: Outcome, diagnosis: Diagnosis, report: EventSink, stop: StopRequest
    ) -> tuple[Outcome, Diagnosis]:
        """Wait for the other parts, end them where one has failed, and return how the attempt went as a whole."""
        deadline: float | None = None
        is_called_off = False
        while True:
            self._look(at_once=True)
            if is_called_off:
                self._hear_interrupt(stop)
            else:
                self._pass_stop_on(stop)
            parts = [self._part(node) for node in self._call.nodes]
            is_over = all(part is not None for part in parts)
            known = [part for part in parts if part]
            has_failed = outcome.outcome != "finished" or any(
                part.has_failed or (part.outcome and part.outcome.outcome != "finished") for part in known
            )
            if has_failed and deadline is None:
                deadline = time.monotonic() + _REPORT_SECONDS
                is_called_off = outcome.outcome != "stopped"  # else the others know that already
                if is_called_off:
                    hows = {outcome.outcome, *(part.outcome.outcome for part in known if part.outcome)}
                    self._lease.say(end="look" if "hung" in hows else "end")
            if is_over or self._lease.is_lost or (deadline and time.monotonic() > deadline):
                break
            report(Ticked())
            time.sleep(_LOOK_SECONDS)
        known += [
            NodePart(node=node, silent_seconds=_REPORT_SECONDS)
            for node, part in zip(self._call.nodes, parts, strict=True)
            if part is None
        ]
        attempt = attempt_folder(self._run, self._call.number)
        mine = NodePart(node=self._me, outcome=outcome, evidence=read_attempt_evidence(attempt))
        whole = JointAttempt(
            attempt=attempt,
            number=self._call.number,
            mine=mine,
            others=tuple(known),
            leaving=tuple(self._call.leaving),
            meeting=self._call.meeting,
            is_stopped=stop.is_asked,
            is_lost=self._lease.is_lost,
        )
        outcome, diagnosis = judge(whole, outcome, diagnosis)
        if outcome.interruption and outcome.interruption.kind == "unreachable":
            self._has_not_met = True
            if self._had_not_met:  # the second time in a row, only a person can help, so the run stops
                outcome = replace(outcome, exit_code=MachineError.exit_code, is_external=False)
        return outcome, diagnosis

    def _look(self, at_once: bool = False) -> None:
        """Read every notice, but not more often than a network file system likes."""
        now = time.monotonic()
        if not at_once and now - self._looked_at < _LOOK_SECONDS:
            return
        self._looked_at = now
        try:
            names = os.listdir(self._run / NODES)  # noqa: PTH208  (names alone: one call, no paths made)
        except OSError:
            names = []
        for name in names:
            if name != self._me and name not in self._seen:
                self._seen[name] = Seen(self._run / NODES / name / NOTICE, MemberNotice)
        for seen in self._seen.values():
            seen.look()

    def _pass_stop_on(self, stop: StopRequest) -> None:
        """Inform all parts of the attempt when a stop is requested, here or on another machine."""
        self._hear_interrupt(stop)
        leaving = [node for node in self._call.nodes if self._notice(node).asks]
        wanted = max(stop.count, 1 if leaving else 0)
        if wanted > self._call.stops:
            self._call.stops, self._call.leaving = wanted, leaving
            self._call.signal = stop.signal or (leaving and self._notice(leaving[0]).asks) or 0
            self._lease.say(end="stop", signal=self._call.signal, stops=wanted)

    def _hear_interrupt(self, stop: StopRequest) -> None:
        """Treat Ctrl-C on another machine like one here; any other signal only asks that machine to leave."""
        asked = (seen.said.asks for seen in self._seen.values() if seen.said and seen.has_moved)
        if not stop.is_asked and signal.SIGINT in asked:
            stop.ask(signal.SIGINT)

    def _present(self) -> tuple[str, ...]:
        """The machines that are alive and free, by name."""
        return tuple(
            name
            for name, seen in sorted(self._seen.items())
            if seen.has_moved and seen.still_seconds < lease_seconds() and self._notice(name).state == "here"
        )

    def _is_silent(self, node: str) -> bool:
        is_over = self._is_restarted(node) or self._notice(node).state == "left"
        return is_over or self._seen[node].still_seconds > lease_seconds()

    def _is_restarted(self, node: str) -> bool:
        """True if a new process now reports for a machine: it knows nothing of the attempt."""
        return self._notice(node).writer != self._call.writers[node]

    def _notice(self, node: str) -> MemberNotice:
        return (node in self._seen and self._seen[node].said) or MemberNotice()

    def _outcome(self, node: str) -> Outcome | None:
        notice = self._notice(node)
        return notice.outcome if notice.attempt == self._call.number else None

    def _part(self, node: str) -> NodePart | None:
        """One machine's part once it is over; None while it runs."""
        if found := self._outcome(node):
            folder = part_folder(attempt_folder(self._run, self._call.number), node)
            return NodePart(node=node, outcome=found, evidence=read_attempt_evidence(folder))
        if not self._is_silent(node):
            return None
        return NodePart(node=node, silent_seconds=self._seen[node].still_seconds, is_restarted=self._is_restarted(node))

    def _last_seen(self, here: tuple[str, ...]) -> str:
        gone = sorted(set(self._seen) - set(here))
        return f"; {', '.join(gone)} was here before and has not reported since" if gone else ""


@dataclass
class _Call:
    number: int = 0
    nodes: tuple[str, ...] = ()  # the others
    writers: dict[str, tuple[object, ...]] = field(default_factory=dict)  # which process reported for each of them then
    leaving: list[str] = field(default_factory=list)
    meeting: MeetingPlace = MeetingPlace()
    stops: int = 0  # how often a stop was asked for, and by which signal
    signal: int = 0
