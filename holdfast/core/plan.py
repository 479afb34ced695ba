"""How a run is carried out, each setting with its reason, and what may be changed when an attempt fails."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Generic, Literal, TypeVar

T = TypeVar("T")

# Maximum tokens of a text, by task
USUAL_LENGTH: Mapping[str, int] = {"classify": 512, "causal": 2048, "two-tower": 256}
MLX = "mlx"  # the device of runs that Apple's MLX computes; all others are torch's
DEFAULT_MICRO_TOKENS = 16_384  # in one backward pass, if memory allows


@dataclass(frozen=True, slots=True)
class Choice(Generic[T]):
    """A setting and why it was chosen."""

    value: T
    because: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The choices of a training run that hazards ask about. `doctor` uses the defaults, as most scripts do."""

    device: str = "auto"  # "auto" | "cpu" | "mps" | "cuda" | "mlx"
    precision: str = "fp32"  # "fp32" | "bf16"
    threads: int | None = None  # None: the default of the libraries
    compile: bool = False


# How remedies name the user's program; views put the real command in its place.
EXAMPLE_COMMAND, EXAMPLE_SCRIPT = "python train.py", "train.py"
DUMP_STACKS = "py-spy dump --native --pid PID"  # a failed run names the folder with its stacks instead


@dataclass(frozen=True, slots=True)
class Remedy:
    """One way to deal with a hazard.

    A `change` (names in `core.settings.CHANGEABLE`, or of environment variables in capitals) can be applied without
    asking. Its values are the new settings; "halve", "raise" and "lower" are relative to the old ones. A remedy with
    only a `command` is for a person. `keeps` is False if the model would learn something different, as from shorter
    texts.
    """

    title: str
    change: Mapping[str, object] | None = None
    command: str = ""
    cost: str = ""
    keeps: bool = True
    needs_script: bool = False  # the command does not help a run without a Python file


@dataclass(frozen=True, slots=True)
class Fallback:
    """One fallback of the ladder: its title and what it changes."""

    title: str
    change: Mapping[str, object]
    cost: str = ""
    keeps: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Reason:
    """Why an attempt is made the way it is, or why no more is made; `runs.wording` writes the sentence."""

    kind: Literal[
        # Why an attempt starts with the settings it has
        "as_requested",
        "remembered",  # these changes worked here before
        "after_stop",
        "after_finish",
        "after_failure",  # restarted after the run had failed, with the changes that got furthest
        "supervisor_lost",
        "called",  # by the machine that leads
        # Why the next attempt has the same settings
        "killed_externally",
        "waited_outside",  # for something outside that was alive but took too long; also why no further attempt is made
        "made_worse",
        "rank_chance",
        "hang_chance",
        "own_failure_chance",
        "progress",
        "error_after_progress",
        # Why the next attempt takes this fallback
        "remedy",
        "next_fallback",
        "remedy_again",
        "changes_learning",
        # Why no further attempt is made
        "no_progress_limit",  # this many attempts got no further than those before them
        "attempt_limit",  # this many attempts in all
        "final_exit_code",
        "killed_at_start",
        "deliberate_exit",
        "unexplained_exit",  # a code, and no error in the output
        "same_exit_code",
        "program_missing",
        "certain_bug",
        "same_error",
        "same_failure",
        "unknown_error_again",
        "unknown_error",
        "nothing_left",
        "no_fallback",  # none was tried, because none can help
    ]
    title: str = ""  # of the hazard, the fallback, the machine or the command that it names
    place: str = ""
    step: int = 0
    attempts: int = 0
    seconds: float = 0.0
