"""The failures that Holdfast can explain, and the exit code of each.

An error is a value; the command line, the JSON output, the API and the pages each render it. `what` and `found` read
the same everywhere, so they name a setting in plain words ("batch size") and never as an option. Advice that a program
can offer too, such as another value for a setting, is an `Action`; other advice is text. Any other exception that
escapes is a bug in Holdfast and exits with 1.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from shlex import quote
from typing import Any, Literal

import msgspec

from holdfast.core.text import option


@dataclass(frozen=True, slots=True)
class Action:
    """Advice as a value: the command line writes an option or a command, a page points to its own field."""

    kind: Literal["set", "unset", "run"]
    setting: str = ""  # by its name in the request, such as label_column
    value: str | int | float | bool | None = None  # for "set"; None if the person chooses
    placeholder: str = "NAME"  # shown on the command line in place of a value that the person chooses
    command: str = ""  # for "run": to type on the machine that trains
    note: str = ""  # what the action costs, or when it helps


Advice = str | Action


@dataclass(frozen=True, slots=True)
class Problem:
    """One invalid setting of a request."""

    setting: str  # empty if the text names it, as for an unknown setting
    text: str  # "out of range; allowed: 1 to 1,000"
    value: str = ""  # as given


def set_to(
    setting: str, value: str | int | float | bool | None = None, *, note: str = "", placeholder: str = "NAME"
) -> Action:
    """Advice to set a setting to this value, or to one that the person chooses."""
    return Action("set", setting, value, placeholder, note=note)


def leave_out(setting: str, *, note: str = "") -> Action:
    """Advice not to give a setting."""
    return Action("unset", setting, note=note)


def type_command(command: str, *, note: str = "") -> Action:
    """Advice to run a command on the machine that trains."""
    return Action("run", command=command, note=note)


def install(extra: str) -> Action:
    """Advice to install one of Holdfast's extras."""
    return type_command(f"pip install 'holdfast[{extra}]'")


class HoldfastError(Exception):
    """A failure that Holdfast can explain."""

    exit_code = 1

    def __init__(
        self,
        what: str,
        *,
        found: str = "",
        try_next: Sequence[Advice] = (),
        slug: str = "",
        setting: str = "",
        problems: Sequence[Problem] = (),
    ):
        """`setting` is the one at fault, if any; `problems` are all invalid settings of a request."""
        super().__init__(what)
        self.what, self.found, self.try_next, self.slug = what, found, tuple(try_next), slug
        self.problems = tuple(problems)
        self.setting = setting or (problems[0].setting if problems else "")

    @property
    def action(self) -> Action | None:
        """The first thing to try that a program can offer."""
        return next((advice for advice in self.try_next if isinstance(advice, Action)), None)


class RequestError(HoldfastError):
    """The request is wrong, and its author can correct it."""

    exit_code = 2


class MachineError(HoldfastError):
    """This machine cannot do what was requested."""

    exit_code = 3


class NotNow(MachineError):
    """This machine cannot continue at the moment; the run is kept and can be resumed."""


class FallbacksFailed(HoldfastError):
    """Every fallback was tried."""

    exit_code = 4


def invalid_settings(problems: Sequence[Problem]) -> RequestError:
    """One error for all invalid settings of a request."""
    what = "a setting is invalid" if len(problems) == 1 else f"{len(problems)} settings are invalid"
    return RequestError(what, problems=problems)


def advice_text(advice: Advice) -> str:
    """Advice as the command line writes it."""
    if isinstance(advice, str):
        return advice
    if advice.kind == "run":
        text = advice.command
    elif advice.kind == "unset":
        text = f"leave out {option(advice.setting)}"
    elif isinstance(advice.value, bool):
        text = option(advice.setting) if advice.value else option(f"no_{advice.setting}")
    else:
        text = f"{option(advice.setting)} {_value_text(advice)}"
    return f"{text}  ({advice.note})" if advice.note else text


def problem_text(problem: Problem) -> str:
    """An invalid setting as the command line writes it."""
    name = " ".join(filter(None, [option(problem.setting), problem.value])) if problem.setting else ""
    return f"{name}: {problem.text}" if name else problem.text


def found_text(error: HoldfastError) -> str:
    """What was found, one fact per line, as the command line writes it."""
    return "\n".join([*filter(None, [error.found]), *map(problem_text, error.problems)])


def render_error(error: HoldfastError) -> str:
    """An error as every command shows it: the fact first, then the advice."""
    lines = [f"error: {error.what}" + (f"   [{error.slug}]" if error.slug else "")]
    if found := found_text(error):
        lines.append("  found  " + found.replace("\n", "\n         "))
    lines += [f"  try    {advice_text(advice)}" for advice in error.try_next]
    if error.slug:
        lines.append(f"  more   holdfast explain {error.slug}")
    return "\n".join(lines)


def printed_error(error: HoldfastError) -> dict[str, object]:
    """An error as `--json` prints it: the texts of the command line, and the values behind them."""
    return {
        "what": error.what,
        "found": found_text(error),
        "try_next": [advice_text(advice) for advice in error.try_next],
        "slug": error.slug,
        "setting": error.setting,
        "actions": [asdict(advice) for advice in error.try_next if isinstance(advice, Action)],
    }


class ErrorRecord(msgspec.Struct, frozen=True, kw_only=True):
    """An error as stored in files and passed between processes."""

    what: str
    found: str = ""
    try_next: list[Advice] = []
    slug: str = ""
    setting: str = ""
    problems: list[Problem] = []
    exit_code: int = 0


def as_record(error: HoldfastError) -> ErrorRecord:
    """An error as a record; `from_record` turns it back."""
    return ErrorRecord(
        what=error.what,
        found=error.found,
        try_next=list(error.try_next),
        slug=error.slug,
        setting=error.setting,
        problems=list(error.problems),
        exit_code=error.exit_code,
    )


def error_record(error: HoldfastError) -> dict[str, Any]:
    """An error as plain JSON; `read_error` reads it back."""
    plain: dict[str, Any] = msgspec.to_builtins(as_record(error))
    return plain


def read_error(plain: Mapping[str, Any]) -> HoldfastError:
    """The error that `error_record` wrote."""
    return from_record(msgspec.convert(plain, ErrorRecord))


def from_record(record: ErrorRecord) -> HoldfastError:
    """The error that a record keeps."""
    kinds = {kind.exit_code: kind for kind in (RequestError, MachineError, FallbacksFailed)}
    return kinds.get(record.exit_code, HoldfastError)(
        record.what,
        found=record.found,
        try_next=record.try_next,
        slug=record.slug,
        setting=record.setting,
        problems=record.problems,
    )


def _value_text(advice: Action) -> str:
    if advice.value is None:
        return advice.placeholder
    return f"{advice.value:g}" if isinstance(advice.value, float) else quote(str(advice.value))
