"""Takes part in a run that another machine leads: runs its own part of every attempt, and reports how it went.

It starts the same command when the leader calls an attempt, watches its own ranks, looks before it ends them, and ends
them when the leader says so or is gone. Who is led by nobody any more tries to lead.

Reads: the leader's notice. Leaves: attempts/NN/nodes/NAME/, nodes/NAME/notice, nodes/NAME/events.jsonl.
"""

import signal
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from holdfast.core.artifacts import to_plain
from holdfast.core.disk_space import writing
from holdfast.core.env import lease_seconds, node_name
from holdfast.core.errors import HoldfastError, RequestError
from holdfast.core.event_log import EventSink
from holdfast.core.events import AttemptEnded, AttemptStarted, LeaderAwaited, LeaderLost, Ticked
from holdfast.core.notice import Seen
from holdfast.core.old_events import untyped
from holdfast.core.plan import Reason
from holdfast.core.records import Outcome, Result
from holdfast.core.runfolder import CHILD, NODES, NOTICE, OUTCOME, attempt_folder, attempt_folders, part_folder
from holdfast.runs.lease import (
    AlreadyHeld,
    Beating,
    beat_seconds,
    is_here,
    is_here_and_gone,
    newest_lease,
    seen_lease,
)
from holdfast.runs.rendezvous import MeetingPlace, with_rendezvous
from holdfast.runs.run_events import RunEvents
from holdfast.runs.supervise import RunSpec, supervise
from holdfast.supervisor.attempt import CallOff, StopRequest, run_attempt
from holdfast.supervisor.budgets import Budgets
from holdfast.supervisor.ending import end_tree

_LOOK_SECONDS = 0.3
_SAY_SECONDS = 60.0


def lead_or_follow(lead: Callable[[], Result], join: Callable[[], Result | None], *, nodes: int) -> Result:
    """Bring a run of several machines to its end: lead it where nobody does, follow where another machine does."""
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
    """Take part until the run has ended, and return how; None when nobody leads it any more."""
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
        self._notice = Beating(folder / NOTICE, {"state": "here"})
        self._has_asked = False  # to leave
        self._done = max((int(attempt.name) for attempt in begun), default=0)  # the newest that this machine began

    def run(self) -> Result | None:
        """Follow until the end."""
        said_at = float("-inf")
        while True:
            self._look()
            said = self._leader.said
            if said.get("state") == "released":
                return self._ended(said) if "exit_code" in said else None
            is_of_my_name = said.get("node") == self._me
            if is_of_my_name and (self._leader.has_moved or is_here(said)):
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
            if self._is_called(said):
                self._take_part(said)
                said_at = time.monotonic()
            if said and not is_of_my_name and time.monotonic() - said_at > _SAY_SECONDS:
                said_at = time.monotonic()
                self._report(LeaderAwaited(leader=self._leader_name))
            self._report(Ticked())
            time.sleep(_LOOK_SECONDS)

    def leave(self) -> None:
        """Say that this machine takes part no more."""
        self._notice.close(state="left")

    @property
    def _is_alone(self) -> bool:
        """True when the leader is gone."""
        if self._leader.newest is None:  # a lease whose taker was killed before it said a word, or none at all
            return time.monotonic() - self._lease_at > lease_seconds()
        return self._leader.still_seconds > lease_seconds() or is_here_and_gone(self._leader.said)

    def _look(self) -> None:
        newest = newest_lease(self._run)
        if newest > self._lease:  # none at all is storage that does not answer
            self._lease, self._lease_at, self._leader = newest, time.monotonic(), seen_lease(self._run, newest)
        self._leader.look()
        if trouble := self._notice.new_trouble():
            self._report(trouble)

    def _end_what_it_led(self) -> None:
        """End what this machine left of attempts that it led; who leads now has closed them, and does not see it."""
        for attempt in attempt_folders(self._run):
            if (attempt / OUTCOME).exists():
                end_tree(attempt, None)

    def _is_called(self, said: Mapping[str, Any]) -> bool:
        number = int(said.get("attempt") or 0)
        return number > self._done and self._me in said.get("nodes", ()) and not said.get("end")

    def _take_part(self, said: Mapping[str, Any]) -> None:
        """Run this machine's part of an attempt, and report how it went."""
        number, changes = int(said["attempt"]), said.get("changes") or {}
        part = part_folder(attempt_folder(self._run, number), self._me)
        part.mkdir(parents=True, exist_ok=True)
        resume = bool(said.get("resume"))
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
            launch = with_rendezvous(launch, MeetingPlace(**said["meeting"]), said["nodes"].index(self._me))
            called_off = _CalledOff(self, number, part_stop)
            outcome, _ = run_attempt(launch, budgets, untyped(self._report), part_stop, called_off)
        except HoldfastError as error:
            words = f"cannot be started: {error.what}" + (f" ({error.seen})" if error.seen else "")
            outcome = Outcome(number=number, outcome="died", sentence=words, exit_code=error.exit_code)
        except OSError as error:
            words = f"cannot be started: {error}"
            outcome = Outcome(number=number, outcome="died", sentence=words, exit_code=3)
        if outcome.sentence:
            self._report(
                AttemptEnded(
                    number=number,
                    outcome=outcome.outcome,
                    slug=outcome.diagnosis,
                    step=outcome.step_reached,
                    phase=outcome.phase,
                    noticed_after_seconds=outcome.noticed_after_seconds,
                    cause=outcome.sentence,
                )
            )
        self._notice.say(attempt=number, outcome=to_plain(outcome))

    def called_off(self, number: int, part_stop: StopRequest) -> CallOff:
        """What the leader says about the attempt that runs; passes wishes to stop on, both ways."""
        self._look()
        if self._is_alone:
            return "end"
        said = self._leader.said
        if said.get("attempt") != number or said.get("state") == "released":
            return "end"
        if self._stop.is_asked and self._stop.count > 1:
            return "end"
        if self._stop.is_asked:
            self._ask_leader()
        if said.get("end") == "stop":
            for _ in range(int(said.get("stops", 1)) - part_stop.count):
                part_stop.ask(int(said.get("signal") or 0))
            return ""
        kinds: dict[str, CallOff] = {"look": "look", "end": "end"}
        return kinds.get(str(said.get("end") or ""), "")

    def _ask_leader(self) -> None:
        """Pass a signal on: on Ctrl-C the leader stops the whole run, on any other this machine's part of it."""
        if not self._has_asked:
            self._has_asked = True
            number = self._stop.signal or int(signal.SIGINT)
            self._notice.say(asks=number)
            if number == signal.SIGINT:
                self._report(LeaderAwaited(leader=self._leader_name, state="asked_to_stop"))

    def _ended(self, said: Mapping[str, Any]) -> Result:
        code = int(said["exit_code"])
        state = {"finished": "finished", "stopped": "stopped"}.get(str(said.get("result")), "failed")
        return Result(
            state=state,  # type: ignore[arg-type]  # one of the three
            exit_code=code,
            sentence=f"{said.get('sentence', 'ended')} (led by {said.get('node')})",
            attempts=self._done,
            seconds=round(time.monotonic() - self._begun, 3),
        )

    def _left(self) -> Result:
        code = 128 + self._stop.signal if self._stop.signal else 130
        return Result(
            state="stopped",
            exit_code=code,
            sentence=f"{self._me} left the run; it continues when enough machines are here",
            attempts=self._done,
            seconds=round(time.monotonic() - self._begun, 3),
        )

    @property
    def _leader_name(self) -> str:
        return str(self._leader.said.get("node") or "the leader")


class _CalledOff:
    """Asks the leader's notice, but not oftener than a network file system likes."""

    def __init__(self, member: _Member, number: int, part_stop: StopRequest):
        self._member, self._number, self._part_stop = member, number, part_stop
        self._looked_at = float("-inf")

    def __call__(self) -> CallOff:
        now = time.monotonic()
        if now - self._looked_at < _LOOK_SECONDS:
            return ""
        self._looked_at = now
        return self._member.called_off(self._number, self._part_stop)


def _require_free(notice: Path, name: str) -> None:
    """Refuse a name that another living supervisor of this run uses."""
    seen = Seen(notice)
    deadline = time.monotonic() + 2 * beat_seconds() + 1
    while seen.look():
        said = seen.said
        if said.get("state") == "left" or is_here_and_gone(said) or time.monotonic() > deadline:
            return
        if seen.has_moved or is_here(said):
            raise _same_name(name)
        time.sleep(_LOOK_SECONDS)


def _same_name(name: str) -> RequestError:
    return RequestError(
        f"another supervisor of this run is called {name!r} as well",
        seen="each machine of a run needs a name of its own",
        try_next=("HOLDFAST_NODE=another-name, where two machines have one host name",),
    )
