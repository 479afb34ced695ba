"""The hang rule: when silence is a hang. Pure; time is an argument.

A deadlock and a stopped process are hung at once. What waits for the network, input, a disk or a timer is given the
phase's time. What is busy and makes no progress is given the budget, and then its stacks are looked at: frozen ones are
a hang, moving ones have many times as long. Work that hardly gets a processor is given its time in processor time. A
debugger and a machine that slept are never a hang.
"""

from dataclasses import dataclass

from holdfast.supervisor.budgets import Budgets
from holdfast.supervisor.verdict import Judged, Verdict

_MOVING_STACKS_FACTOR = 20.0
_MOVING_STACKS_FLOOR_SECONDS = 7200.0
_NO_STACKS_FACTOR = 2.0
_CRASH_LOOP_SECONDS = 10.0
_AT_ONCE_SECONDS = 3.0  # the window has shown nothing else


@dataclass(frozen=True, slots=True, kw_only=True)
class Silence:
    """How things stand since progress was last seen."""

    phase: str
    judged: Judged
    silent_seconds: float  # since a step or a phase changed, as far as it counts
    passed_seconds: float  # since then on the clock, whether it counts or not
    still_seconds: float  # since anything moved at all
    verdict_seconds: float  # since the verdict changed
    stacks_move: bool | None = None  # None: not looked at, or nothing to be seen
    is_disk_alive: bool = False
    is_gpu_busy: bool = False


@dataclass(frozen=True, slots=True)
class Ruling:
    """What the rule says: hung and why, or what it must know first."""

    because: str = ""  # not empty: hung
    wants_stacks: bool = False
    waited_seconds: float = 0.0  # for something outside
    limit_seconds: float | None = None  # when that wait will be given up

    @property
    def is_hung(self) -> bool:
        """True when it is to be ended."""
        return bool(self.because)


_FINE = Ruling()


def rule(silence: Silence, budgets: Budgets) -> Ruling:
    """Apply the hang rule."""
    verdict = silence.judged.verdict
    if verdict is Verdict.DEBUGGED:
        return _FINE
    if silence.is_gpu_busy and verdict not in (Verdict.STOPPED, Verdict.CRASH_LOOP):
        return _rule_moving(silence, budgets)
    if verdict in (Verdict.DEADLOCK, Verdict.STOPPED):
        return Ruling(silence.judged.words) if silence.passed_seconds >= _AT_ONCE_SECONDS else _FINE
    if verdict is Verdict.CRASH_LOOP:
        is_old = silence.verdict_seconds >= _CRASH_LOOP_SECONDS and silence.silent_seconds >= _CRASH_LOOP_SECONDS
        return Ruling(silence.judged.words) if is_old else _FINE
    if verdict in (Verdict.MOVING, Verdict.STARVED):
        return _rule_moving(silence, budgets)
    return _rule_waiting(silence, budgets)


def _rule_waiting(silence: Silence, budgets: Budgets) -> Ruling:
    judged, phase = silence.judged, silence.phase
    waited = silence.silent_seconds if phase == "step" else silence.still_seconds
    limit = budgets.waiting_seconds(phase)
    asked = _asked_limit(phase, budgets)
    if asked and silence.silent_seconds > asked:
        return Ruling(f"{judged.words}; no progress for {silence.silent_seconds:.0f} s, and {asked:.0f} s were allowed")
    if judged.verdict is Verdict.WAIT_NET:
        limit = budgets.network_seconds(phase)
        quiet = silence.still_seconds if judged.silent_seconds is None else judged.silent_seconds
        waited = min(waited, quiet)
    elif judged.is_own_timer:
        limit = budgets.sleeping_seconds(phase)
    elif judged.verdict is Verdict.KERNEL:
        limit = budgets.kernel_seconds(phase)
        if silence.is_disk_alive:
            return _FINE
    if waited <= limit:
        return Ruling(waited_seconds=waited, limit_seconds=min(limit, asked or limit))
    return Ruling(f"{judged.words}; {waited:.0f} s in phase {phase}, where {limit:.0f} s are allowed")


def _rule_moving(silence: Silence, budgets: Budgets) -> Ruling:
    phase, silent = silence.phase, silence.silent_seconds
    asked, limit = _asked_limit(phase, budgets), budgets.moving_seconds(phase)
    if asked and silent > asked:
        return Ruling(f"busy, but no progress for {silent:.0f} s, and {asked:.0f} s were allowed")
    if limit is None or silent <= limit or asked:
        return _FINE
    said = f"busy in phase {phase} for {silent:.0f} s without progress, where {limit:.0f} s are allowed"
    if silence.stacks_move is None and silence.judged.verdict is Verdict.STARVED:
        return Ruling(wants_stacks=True)
    if silence.stacks_move is None:
        is_long = silent > _NO_STACKS_FACTOR * limit
        return Ruling(f"{said}; its stacks cannot be seen") if is_long else Ruling(wants_stacks=True)
    if not silence.stacks_move:
        return Ruling(f"{said}, and its stack stands still")
    longest = max(_MOVING_STACKS_FACTOR * limit, _MOVING_STACKS_FLOOR_SECONDS)
    return Ruling(f"{said}, though its stack moves") if silent > longest else Ruling(wants_stacks=True)


def _asked_limit(phase: str, budgets: Budgets) -> float | None:
    """The user's own limit, where steps, or what stands for them, are what is waited for."""
    return budgets.step_timeout_seconds if phase in ("step", "unknown") else None
