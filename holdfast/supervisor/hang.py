"""The hang rule: when silence is a hang. Pure; time is an argument.

- A deadlock and a stopped process are a hang at once: more time changes nothing.
- What waits for input or a timer gets the time of its phase.
- What waits for something outside that is alive (a child, a server, a disk, a lock another program holds, its own
  sleep) gets a generous limit, which grows with such waits of this run; libraries that fetch files get less.
- What is busy without progress gets its budget; then its stacks decide. A still stack is a hang, a moving one gets
  many times as long.
- Work that hardly gets a processor is measured in processor time instead of time on the clock.
- A debugger and a machine that slept are never a hang.
"""

from dataclasses import dataclass

from holdfast.core.observations import GivenUp, GivenUpReason, TreeVerdict, Verdict
from holdfast.supervisor.budgets import Budgets

# A stack that moves shows work that nobody announced, such as a long evaluation without a progress bar. Ending it would
# be the worse mistake, so it gets twenty budgets and at least two hours.
_MOVING_STACKS_FACTOR = 20.0
_MOVING_STACKS_FLOOR_SECONDS = 7200.0
_NO_STACKS_FACTOR = 2.0  # no stack can be read (no py-spy, no handler): one budget more in place of that proof
_CRASH_LOOP_SECONDS = 10.0  # a pool that replaces a few workers recovers within seconds
_AT_ONCE_SECONDS = 3.0  # less than the window of samples, which has then shown nothing else
_LONGEST_TURN_SECONDS = 5.0  # a longer gap between two samples is time the supervisor did not see
_NOT_STILL = (Verdict.STARVED, Verdict.DEBUGGED, Verdict.MOVING, Verdict.CRASH_LOOP)


@dataclass(frozen=True, slots=True)
class StackReport:
    """What the stacks of a busy tree showed."""

    moves: bool | None = None  # None: too few were read so far
    is_unseen: bool = False  # many tries, and not one could be read


@dataclass(frozen=True, slots=True, kw_only=True)
class Silence:
    """The state since progress was last seen."""

    phase: str
    verdict: TreeVerdict
    silent_seconds: float  # since a step or a phase changed, as far as it counts
    passed_seconds: float  # since then on the clock, whether it counts or not
    still_seconds: float  # since anything moved at all
    verdict_seconds: float  # since the verdict changed
    stacks: StackReport = StackReport()
    is_disk_alive: bool = False
    is_gpu_busy: bool = False


@dataclass(frozen=True, slots=True)
class Ruling:
    """The rule's result: a hang and why, or what it must know first."""

    given_up: GivenUp | None = None  # None: not a hang, or not yet
    wants_stacks: bool = False
    waited_seconds: float = 0.0  # for something outside
    limit_seconds: float | None = None  # when that wait will be given up

    @property
    def is_hung(self) -> bool:
        """True when the attempt is to be ended."""
        return self.given_up is not None


_FINE = Ruling()
_AT_ONCE = Ruling(GivenUp(reason="verdict"))


def rule(silence: Silence, budgets: Budgets) -> Ruling:
    """Apply the hang rule."""
    verdict = silence.verdict.verdict
    if verdict is Verdict.DEBUGGED:
        return _FINE
    if silence.is_gpu_busy and verdict not in (Verdict.STOPPED, Verdict.CRASH_LOOP):
        return _rule_moving(silence, budgets)
    if verdict in (Verdict.DEADLOCK, Verdict.STOPPED):
        return _AT_ONCE if silence.passed_seconds >= _AT_ONCE_SECONDS else _FINE
    if verdict is Verdict.CRASH_LOOP:
        is_old = silence.verdict_seconds >= _CRASH_LOOP_SECONDS and silence.silent_seconds >= _CRASH_LOOP_SECONDS
        return _AT_ONCE if is_old else _FINE
    if verdict in (Verdict.MOVING, Verdict.STARVED):
        return _rule_moving(silence, budgets)
    return _rule_waiting(silence, budgets)


def _rule_waiting(silence: Silence, budgets: Budgets) -> Ruling:
    verdict, phase = silence.verdict, silence.phase
    reason: GivenUpReason = "wait_too_long"
    waited = silence.silent_seconds if phase == "step" else silence.still_seconds
    limit = budgets.waiting_seconds(phase)
    requested = _requested_limit(phase, budgets)
    if requested and silence.silent_seconds > requested:
        return _given_up("step_timeout", phase, silence.silent_seconds, requested)
    if verdict.verdict is Verdict.WAIT_NET:
        limit = budgets.network_seconds(phase)
        quiet = silence.still_seconds if verdict.silent_seconds is None else verdict.silent_seconds
        waited = min(waited, quiet)
    elif verdict.is_own_timer:
        limit = budgets.sleeping_seconds(phase)
    elif verdict.verdict is Verdict.KERNEL:
        limit = budgets.kernel_seconds(phase)
        if silence.is_disk_alive:
            return _FINE
    if verdict.outside and budgets.is_patient(phase, verdict.outside):
        limit, reason = max(limit, budgets.outside_seconds()), "outside_too_long"
    if waited <= limit:
        return Ruling(waited_seconds=waited, limit_seconds=min(limit, requested or limit))
    return _given_up(reason, phase, waited, limit)


def _rule_moving(silence: Silence, budgets: Budgets) -> Ruling:
    phase, silent = silence.phase, silence.silent_seconds
    requested, limit = _requested_limit(phase, budgets), budgets.moving_seconds(phase)
    if requested and silent > requested:
        return _given_up("step_timeout", phase, silent, requested, is_busy=True)
    if limit is None or silent <= limit or requested:
        return _FINE
    if silence.verdict.outside:  # another program works for it
        longest = max(limit, budgets.outside_seconds())
        if silent <= longest:
            return Ruling(waited_seconds=silent, limit_seconds=longest)
        return _given_up("outside_too_long", phase, silent, longest, is_busy=True)
    longest = max(_MOVING_STACKS_FACTOR * limit, _MOVING_STACKS_FLOOR_SECONDS)
    stacks = silence.stacks
    if stacks.moves is False:
        return _given_up("busy_stack_still", phase, silent, limit, is_busy=True)
    if stacks.moves is None and silence.verdict.verdict is Verdict.STARVED:
        return Ruling(wants_stacks=True)
    if silent > longest:
        reason: GivenUpReason = "busy_stack_moves" if stacks.moves else "busy_stacks_unseen"
        return _given_up(reason, phase, silent, limit, is_busy=True)
    # Stacks that could not be read yet are no evidence: on a crowded machine twelve of them take a while.
    if stacks.is_unseen and silent > _NO_STACKS_FACTOR * limit:
        return _given_up("busy_stacks_unseen", phase, silent, limit, is_busy=True)
    return Ruling(wants_stacks=True)


def _given_up(
    reason: GivenUpReason, phase: str, seconds: float, limit_seconds: float, *, is_busy: bool = False
) -> Ruling:
    return Ruling(
        GivenUp(
            reason=reason,
            is_busy=is_busy,
            phase=phase,
            seconds=round(seconds, 1),
            limit_seconds=round(limit_seconds, 1),
        )
    )


def _requested_limit(phase: str, budgets: Budgets) -> float | None:
    """The user's own limit, for waits in steps and for commands that report nothing."""
    return budgets.step_timeout_seconds if phase in ("step", "unknown") else None


class SilenceClock:
    """Counts how long an attempt has been silent.

    Not all time counts: not while the machine slept, while the supervisor itself was held up, or while a debugger holds
    the process. While other programs take the processors, only the share counts that the attempt was given.
    """

    def __init__(self, now: float):
        self._progress_at = self._sampled_at = now
        self._moved_at = self._verdict_at = now
        self._verdict = Verdict.MOVING
        self.counted_seconds = 0.0  # of silence that counts

    def silent_seconds(self, now: float) -> float:
        """Since a step or a phase changed."""
        return now - self._progress_at

    def still_seconds(self, now: float) -> float:
        """Since anything moved at all."""
        return now - self._moved_at

    def verdict_seconds(self, now: float) -> float:
        """Since the verdict changed."""
        return now - self._verdict_at

    def note_progress(self, now: float) -> None:
        """A step or a phase has changed."""
        self._progress_at = self._moved_at = self._sampled_at = now
        self.counted_seconds = 0.0

    def note_sleep(self, now: float) -> None:
        """The machine slept: what came before says nothing about now."""
        self._progress_at = self._moved_at = self._verdict_at = self._sampled_at = now
        self.counted_seconds = 0.0

    def count(self, now: float, verdict: TreeVerdict) -> None:
        """Count the time since the last sample."""
        unseen = max(now - self._sampled_at - _LONGEST_TURN_SECONDS, 0.0)
        turn = now - self._sampled_at - unseen
        counted = self.counted_seconds + turn * verdict.given_share
        # After a debugger's pause the count begins again: what came before it was perhaps its work too.
        self.counted_seconds = 0.0 if verdict.verdict is Verdict.DEBUGGED else counted
        self._moved_at = now if verdict.verdict in _NOT_STILL else min(self._moved_at + unseen, now)
        if verdict.verdict is not self._verdict:
            self._verdict, self._verdict_at = verdict.verdict, now
        self._sampled_at = now
