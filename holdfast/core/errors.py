"""The failures we can explain, and the exit code each one means.

An error is data plus a sentence: what happened, what was seen, what to try, where to read on. Anything else that
escapes is a bug of ours and exits with 1.
"""


class HoldfastError(Exception):
    """A failure we can explain. Anything else that escapes is a bug and says so."""

    exit_code = 1

    def __init__(self, what: str, *, seen: str = "", try_next: tuple[str, ...] = (), slug: str = ""):
        super().__init__(what)
        self.what, self.seen, self.try_next, self.slug = what, seen, try_next, slug


class RequestError(HoldfastError):
    """The request is wrong, and its author can fix it."""

    exit_code = 2


class MachineError(HoldfastError):
    """This machine cannot do what was asked."""

    exit_code = 3


class NotNow(MachineError):
    """This machine cannot go on at the moment; the run stays as it is, to be resumed."""


class RunFailed(HoldfastError):
    """Every rung of the ladder was tried."""

    exit_code = 4


def render_error(error: HoldfastError) -> str:
    """Write an error the way every command shows it: state first, advice after."""
    lines = [f"error: {error.what}" + (f"   [{error.slug}]" if error.slug else "")]
    if error.seen:
        lines.append(f"  seen   {error.seen}")
    lines += [f"  try    {advice}" for advice in error.try_next]
    if error.slug:
        lines.append(f"  more   holdfast explain {error.slug}")
    return "\n".join(lines)
