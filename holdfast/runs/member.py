"""The supervisor of a machine that does not lead: runs this machine's part of every attempt and reports how it went.

A member starts the same command when the leader calls an attempt, watches its own ranks, collects evidence before it
ends them, and ends them when the leader says so or is gone. If the leader is gone, the member tries to lead.

Reads: the leader's notice. Leaves: attempts/NN/nodes/NAME/, nodes/NAME/notice, nodes/NAME/events.jsonl.
"""

import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from holdfast.core.disk_space import writing
from holdfast.core.env import lease_seconds, node_name
from holdfast.core.errors import HoldfastError, MachineError, RequestError
from holdfast.core.event_log import EventSink
from holdfast.core.events import AttemptEnded, AttemptStarted, LeaderAwaited, LeaderLost, Ticked
from holdfast.core.notice import Seen
from holdfast.core.plan import Reason
from holdfast.core.records import Interruption, LeaseNotice, MemberNotice, Outcome, Result
from holdfast.core.runfolder import CHILD, NODES, NOTICE, OUTCOME, attempt_folder, attempt_folders, part_folder
from holdfast.runs.lease import (
    AlreadyHeld,
    Heartbeat,
    beat_seconds,
    describe_self,
    is_here,
    is_here_and_gone,
    newest_lease,
    seen_lease,
)
from holdfast.runs.rendezvous import with_rendezvous
from holdfast.runs.run_events import RunEvents
from holdfast.runs.supervise import RunSpec, supervise
from holdfast.supervisor.attempt import CallOff, StopRequest, run_attempt
from holdfast.supervisor.budgets import Budgets
from holdfast.supervisor.ending import end_tree

_LOOK_SECONDS = 0.3
_SAY_SECONDS = 60.0


def lead_or_follow(lead: Callable[[], Result], join: Callable[[], Result | None], *, nodes: int) -> Result:
    """Bring a run on several machines to its end: lead it if no machine does, otherwise follow the leader."""
    while True:
        try:
            return lead()
        except AlreadyHeld:
            if nodes == 1:
                raise
        if result := join():
            return result


def take_part(run: Path, spec: RunSpec, *listeners: EventSink, stop: StopRequest) -> Result:
    """Supervise a command on this machine, and with others where there are any."""
    return lead_or_follow(
        lambda: supervise(run, spec, *listeners, stop=stop),
        lambda: follow(run, spec, *listeners, stop=stop),
        nodes=spec.nodes,
    )


def follow(run: Path, spec: RunSpec, *listeners: EventSink, stop: StopRequest) -> Result | None:
    """Follow until the run has ended, and return how; None if the leader is gone."""
    with writing(run):
        member = _Member(run, spec, listeners, stop)
        try:
            return member.run()
        finally:
            member.leave()


class _Member:
    """This machine's part in a run."""

    def __init__(self, run: Path, spec: RunSpec, listeners: Sequence[EventSink], stop: StopRequest):
        self._run, self._spec, self._stop = run, spec, stop
        self._me = node_name()
        self._begun = time.monotonic()
        self._lease, self._lease_at, self._leader = 0, self._begun, seen_lease(run, 0)
        folder = run / NODES / self._me
        folder.mkdir(parents=True, exist_ok=True)
        _require_free(folder / NOTICE, self._me)
        begun = [attempt for attempt in attempt_folders(run) if (part_folder(attempt, self._me) / CHILD).exists()]
        for attempt in begun:
            end_tree(part_folder(attempt, self._me), None)  # what an earlier supervisor of this machine left
        self._end_what_it_led()
        self._report = RunEvents(folder, *listeners)
        self._notice = Heartbeat(folder / NOTICE, describe_self(MemberNotice, state="here"))
        self._has_asked = False  # to leave
        self._done = max((int(attempt.name) for attempt in begun), default=0)  # the newest that it started

    def run(self) -> Result | None:
        """Follow until the end."""
        reported_at = float("-inf")
        while True:
            self._look()
            notice = self._leader.said
            if notice and notice.state == "released":
                return None if notice.exit_code is None else self._ended(notice, notice.exit_code)
            is_of_my_name = notice is not None and notice.node == self._me
            if notice and is_of_my_name and (self._leader.has_moved or is_here(notice)):
                raise _same_name(self._me)
            if self._is_alone and self._stop.is_asked:
                return self._left()
            if self._is_alone:
                self._report(LeaderLost(leader=self._leader_name, silent_seconds=self._leader.still_seconds))
                return None
            if self._stop.is_asked:
                self._ask_leader()
                if self._stop.signal != signal.SIGINT or self._stop.count > 1:
                    return self._left()
            if notice and self._is_called(notice):
                self._take_part(notice)
                reported_at = time.monotonic()
            if notice and not is_of_my_name and time.monotonic() - reported_at > _SAY_SECONDS:
                reported_at = time.monotonic()
                self._report(LeaderAwaited(leader=self._leader_name))
            self._report(Ticked())
            time.sleep(_LOOK_SECONDS)

    def leave(self) -> None:
        """Report that this machine has left."""
        self._notice.close(state="left")

    @property
    def _is_alone(self) -> bool:
        """True when the leader is gone."""
        if self._leader.said is None:  # a lease whose taker was killed before it wrote its notice, or no lease at all
            return time.monotonic() - self._lease_at > lease_seconds()
        return self._leader.still_seconds > lease_seconds() or is_here_and_gone(self._leader.said)

    def _look(self) -> None:
        newest = newest_lease(self._run)
        if newest > self._lease:  # no lease at all means that the storage does not answer
            self._lease, self._lease_at, self._leader = newest, time.monotonic(), seen_lease(self._run, newest)
        self._leader.look()
        if trouble := self._notice.new_trouble():
            self._report(trouble)

    def _end_what_it_led(self) -> None:
        """End what is left of attempts that this machine led: the new leader cannot see its processes."""
        for attempt in attempt_folders(self._run):
            if (attempt / OUTCOME).exists():
                end_tree(attempt, None)

    def _is_called(self, notice: LeaseNotice) -> bool:
        return notice.attempt > self._done and self._me in notice.nodes and not notice.end

    def _take_part(self, notice: LeaseNotice) -> None:
        """Run this machine's part of an attempt, and report how it went."""
        number, changes, resume = notice.attempt, notice.changes, notice.resume
        part = part_folder(attempt_folder(self._run, number), self._me)
        part.mkdir(parents=True, exist_ok=True)
        started = AttemptStarted(
            number=number,
            reason=Reason(kind="called", title=self._leader_name),
            changes=dict(changes),
            resume=resume,
            folder=str(part),
        )
        self._report(started)
        self._notice.say(attempt=number, outcome=None)
        self._done = number
        self._end_what_it_led()
        try:
            launch = self._spec.make_launch(part, changes, resume)
            budgets = Budgets(self._spec.step_timeout_seconds)
            part_stop = StopRequest()
            launch = with_rendezvous(launch, notice.meeting, notice.nodes.index(self._me))
            called_off = _CalledOff(self, number, part_stop)
            outcome, _ = run_attempt(launch, budgets, self._report, part_stop, called_off)
        except HoldfastError as error:
            message = error.what + (f" ({error.found})" if error.found else "")
            outcome = _not_started(number, message, error.exit_code)
        except OSError as error:
            outcome = _not_started(number, str(error), MachineError.exit_code)
        if outcome.cause or outcome.interruption:
            self._report(
                AttemptEnded(
                    number=number,
                    outcome=outcome.outcome,
                    slug=outcome.diagnosis,
                    step=outcome.step_reached,
                    phase=outcome.phase,
                    noticed_after_seconds=outcome.noticed_after_seconds,
                    cause=outcome.cause or outcome.interruption,
                )
            )
        self._notice.say(attempt=number, outcome=outcome)

    def called_off(self, number: int, part_stop: StopRequest) -> CallOff:
        """What the leader says about the running attempt; passes stop requests on in both directions."""
        self._look()
        if self._is_alone:
            return "end"
        notice = self._leader.said
        if notice is None or notice.attempt != number or notice.state == "released":
            return "end"
        if self._stop.is_asked and self._stop.count > 1:
            return "end"
        if self._stop.is_asked:
            self._ask_leader()
        if notice.end == "stop":
            for _ in range(notice.stops - part_stop.count):
                part_stop.ask(notice.signal)
            return ""
        return notice.end

    def _ask_leader(self) -> None:
        """Pass a signal on: on Ctrl-C the leader stops the whole run, on any other this machine's part of it."""
        if not self._has_asked:
            self._has_asked = True
            number = self._stop.signal or int(signal.SIGINT)
            self._notice.say(asks=number)
            if number == signal.SIGINT:
                self._report(LeaderAwaited(leader=self._leader_name, state="asked_to_stop"))

    def _ended(self, notice: LeaseNotice, exit_code: int) -> Result:
        return Result(
            state=notice.result or "failed",
            exit_code=exit_code,
            error=notice.error,
            attempts=self._done,
            seconds=round(time.monotonic() - self._begun, 3),
        )

    def _left(self) -> Result:
        code = 128 + self._stop.signal if self._stop.signal else 130
        return Result(
            state="stopped",
            exit_code=code,
            has_left=True,
            attempts=self._done,
            seconds=round(time.monotonic() - self._begun, 3),
        )

    @property
    def _leader_name(self) -> str:
        return (self._leader.said and self._leader.said.node) or "the leader"


class _CalledOff:
    """Reads the leader's notice, but not more often than a network file system likes."""

    def __init__(self, member: _Member, number: int, part_stop: StopRequest):
        self._member, self._number, self._part_stop = member, number, part_stop
        self._looked_at = float("-inf")

    def __call__(self) -> CallOff:
        now = time.monotonic()
        if now - self._looked_at < _LOOK_SECONDS:
            return ""
        self._looked_at = now
        return self._member.called_off(self._number, self._part_stop)


def _not_started(number: int, message: str, exit_code: int) -> Outcome:
    why = Interruption(kind="not_started", message=message)
    return Outcome(number=number, outcome="died", interruption=why, exit_code=exit_code)


def _require_free(notice: Path, name: str) -> None:
    """Refuse a name that another living supervisor of this run uses."""
    seen = Seen(notice, MemberNotice)
    deadline = time.monotonic() + 2 * beat_seconds() + 1
    while found := seen.look():
        if found.state == "left" or is_here_and_gone(found) or time.monotonic() > deadline:
            return
        if seen.has_moved or is_here(found):
            raise _same_name(name)
        time.sleep(_LOOK_SECONDS)


def _same_name(name: str) -> RequestError:
    return RequestError(
        f"another supervisor of this run is also called {name!r}",
        found="each machine of a run needs its own name",
        try_next=("HOLDFAST_NODE=another-name, where two machines have the same host name",),
    )
