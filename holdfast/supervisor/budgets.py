"""How long each phase may be silent: learned from this run's steps and from earlier runs.

A phase has two limits. *Waiting*: nothing runs, the run waits for something outside. *Moving*: the processors are busy
without progress; then stacks decide, see `supervisor.hang`. Both begin generous and grow with the time the phase took.
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

from holdfast.core.observations import OutsideWait

# Steps of one run differ (a longer text, an evaluation in between, a busy machine), so only six times the slowest
# recent one, and at least half a minute, counts as silence.
STEP_FACTOR, STEP_FLOOR_SECONDS = 6.0, 30.0
_RECENT_STEPS = 50
_EVER_FACTOR = 1.5  # a step that took long once in this run may do so again
_SLEEP_FACTOR = 3.0
_STEP_PHASES = ("step",)


@dataclass(frozen=True, slots=True)
class _Limits:
    waiting_seconds: float
    moving_seconds: float | None  # None: no limit


_MINUTE = 60.0
_DEFAULTS: Mapping[str, _Limits] = {
    "unknown": _Limits(60 * _MINUTE, None),  # a command without a heartbeat, perhaps only a client
    "start": _Limits(30 * _MINUTE, None),  # a script that has not loaded a library we know
    "import": _Limits(2 * _MINUTE, 10 * _MINUTE),
    "load": _Limits(5 * _MINUTE, 60 * _MINUTE),
    "download": _Limits(5 * _MINUTE, 60 * _MINUTE),
    "tokenize": _Limits(5 * _MINUTE, 60 * _MINUTE),
    "resume": _Limits(5 * _MINUTE, 30 * _MINUTE),
    "compile": _Limits(10 * _MINUTE, 60 * _MINUTE),
    "begin epoch": _Limits(10 * _MINUTE, 60 * _MINUTE),
    "first step": _Limits(5 * _MINUTE, 30 * _MINUTE),
    "evaluate": _Limits(5 * _MINUTE, 30 * _MINUTE),
    "save": _Limits(10 * _MINUTE, 30 * _MINUTE),
    "export": _Limits(10 * _MINUTE, 30 * _MINUTE),
    "end": _Limits(2 * _MINUTE, 10 * _MINUTE),
}
_NETWORK_SECONDS = 60.0  # without a byte; a hub's own reads give up after 10
_FETCHING = ("import", "load", "download", "tokenize", "resume")
# A child that evaluates, a model that judges over HTTP, a file server that stalls: half an hour is rare but healthy.
_OUTSIDE_SECONDS = 30 * _MINUTE
_OUTSIDE = "outside"  # the name under which such waits are remembered, next to the phases
_KERNEL_SECONDS = 5 * _MINUTE


class Budgets:
    """The limits of one attempt. Each attempt gets new ones: what one attempt learned must not judge the next."""

    def __init__(
        self,
        step_timeout_seconds: float | None = None,
        earlier: Mapping[str, float] | None = None,
        step_floor_seconds: float = STEP_FLOOR_SECONDS,
    ):
        """`earlier`: seconds that phases took in earlier runs like this one; "step" is the slowest step."""
        self.step_timeout_seconds, self._step_floor_seconds = step_timeout_seconds, step_floor_seconds
        self._earlier = dict(earlier or {})
        self._steps: deque[float] = deque(maxlen=_RECENT_STEPS)
        self._slowest = 0.0
        self._phases: dict[str, float] = {}

    def note_step(self, seconds: float) -> None:
        """Learn how long a step took."""
        self._steps.append(seconds)
        self._slowest = max(seconds, self._slowest)

    def note_phase(self, phase: str, seconds: float) -> None:
        """Learn how long a phase took."""
        self._phases[phase] = max(seconds, self._phases.get(phase, 0.0))

    def learnt(self) -> dict[str, float]:
        """The longest that each phase took in this run, for the memory of this machine."""
        return {**self._phases, **({"step": max(self._steps)} if self._steps else {})}

    @property
    def step_seconds(self) -> float:
        """How long the next step may take."""
        if self.step_timeout_seconds:
            return self.step_timeout_seconds
        recent = max(self._steps, default=self._earlier.get("step", 0.0))
        return max(STEP_FACTOR * recent, _EVER_FACTOR * self._slowest, self._step_floor_seconds)

    def waiting_seconds(self, phase: str) -> float:
        """How long nothing may run in a phase."""
        if phase in _STEP_PHASES:
            return self.step_seconds
        return max(_DEFAULTS[phase].waiting_seconds, STEP_FACTOR * self._taken(phase))

    def sleeping_seconds(self, phase: str) -> float:
        """How long the main thread itself may sleep in a phase, as programs do before a retry."""
        return max(self.waiting_seconds(phase), _SLEEP_FACTOR * self._step_floor_seconds)

    def moving_seconds(self, phase: str) -> float | None:
        """How long a phase may be busy without progress before its stacks are read; None: no limit."""
        if phase in _STEP_PHASES:
            return self.step_seconds
        limit = _DEFAULTS[phase].moving_seconds
        return None if limit is None else max(limit, STEP_FACTOR * self._taken(phase))

    def network_seconds(self, phase: str) -> float:
        """How long the network may be silent in a phase."""
        return _NETWORK_SECONDS if phase in _FETCHING else max(_NETWORK_SECONDS, self.waiting_seconds(phase))

    def note_outside(self, seconds: float) -> None:
        """Learn how long a wait for something outside took."""
        self.note_phase(_OUTSIDE, seconds)

    def outside_seconds(self) -> float:
        """How long something outside that is alive may take."""
        return max(_OUTSIDE_SECONDS, STEP_FACTOR * self._taken(_OUTSIDE))

    def is_patient(self, phase: str, outside: OutsideWait) -> bool:
        """False for a server while libraries fetch files: a hub that gives no byte for a minute never will."""
        return not (outside.kind == "server" and phase in _FETCHING)

    def kernel_seconds(self, phase: str) -> float:
        """How long a disk may take to answer in a phase."""
        return max(_KERNEL_SECONDS, self.waiting_seconds(phase))

    def _taken(self, phase: str) -> float:
        return max(self._phases.get(phase, 0.0), self._earlier.get(phase, 0.0))
