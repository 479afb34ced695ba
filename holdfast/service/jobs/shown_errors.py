"""Errors as the pages and the API show them: each setting by the page's label or by its key, never as an option.

Advice is kept if it can be followed there. Setting another value is done in a form or a request; a command is for the
machine that trains; what needs a path or a run on the command line is left out.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from holdfast.core.data_warnings import DataWarning
from holdfast.core.errors import Action, Advice, HoldfastError, Problem, read_error
from holdfast.core.settings import OPEN_SETTINGS, SETTINGS
from holdfast.service.jobs.job_folder import ROLES
from holdfast.service.jobs.secrets import without_secrets

# A login on the machine would be every user's; a secret is its owner's alone.
_INSTEAD = {"hf auth login": "keep your hub token as the secret HF_TOKEN on your account page"}
_PATHS = ("FOLDER", "FILE")
_SETTINGS = frozenset({*OPEN_SETTINGS, *ROLES, "dataset", "team"})  # that a form or a request can set


@dataclass(frozen=True, slots=True)
class ShownProblem:
    """One invalid setting, for its control in a form."""

    setting: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownError:
    """An error as a page shows it."""

    what: str
    found: str = ""
    problems: tuple[ShownProblem, ...] = ()
    try_next: tuple[str, ...] = ()


def label_of(setting: str) -> str:
    """What the pages call a setting."""
    known = SETTINGS.get(setting)
    return (known and known.label) or setting.replace("_", " ")


def page_error(error: HoldfastError, settings: Collection[str] = _SETTINGS) -> ShownError:
    """An error for a page whose forms have these settings."""
    return ShownError(
        what=without_secrets(error.what),
        found=without_secrets(error.found),
        problems=tuple(ShownProblem(one.setting, _problem_text(one, label_of(one.setting))) for one in error.problems),
        try_next=tuple(_advice(error.try_next, settings, by_label=True)),
    )


def kept_page_error(record: Mapping[str, Any], settings: Collection[str] = _SETTINGS) -> ShownError | None:
    """The same of an error that a row holds; None where it holds none."""
    return page_error(read_error(record), settings) if record.get("what") else None


def page_warning(warning: DataWarning, settings: Collection[str] = _SETTINGS) -> str:
    """A warning about data, with the advice that this page can offer."""
    advice = _advice([warning.action] if warning.action else [], settings, by_label=True)
    return without_secrets("; ".join([warning.text, *advice]))


def error_line(error: HoldfastError) -> str:
    """An error in one line, for a message above a page."""
    shown = page_error(error)
    found = "; ".join(filter(None, (shown.found, *(one.text for one in shown.problems))))
    texts = [f"{shown.what}: {found}" if found else shown.what, "; ".join(shown.try_next)]
    return " ".join(f"{text[0].upper()}{text[1:].rstrip('.')}." for text in texts if text)


def api_error(error: HoldfastError) -> dict[str, Any]:
    """An error in the API's shape: texts, and the values behind them."""
    problems = [_problem_text(one, one.setting) for one in error.problems]
    return {
        "what": without_secrets(error.what),
        "found": "\n".join(filter(None, (without_secrets(error.found), *problems))),
        "try_next": _advice(error.try_next, _SETTINGS, by_label=False),
        "slug": error.slug,
        "setting": error.setting,
        "problems": [asdict(one) for one in error.problems],
        "actions": [asdict(one) for one in error.try_next if isinstance(one, Action) and _is_possible(one, _SETTINGS)],
    }


def kept_api_error(record: Mapping[str, Any]) -> dict[str, Any] | None:
    """The same of an error that a row holds; None where it holds none."""
    return api_error(read_error(record)) if record.get("what") else None


def _problem_text(problem: Problem, name: str) -> str:
    """One invalid setting in a sentence: "epochs 0: out of range; allowed: 1 to 1,000"."""
    head = " ".join(filter(None, (name, problem.value)))
    return f"{head}: {problem.text}" if head else problem.text


def _advice(advice: Sequence[Advice], settings: Collection[str], *, by_label: bool) -> list[str]:
    texts = [_advice_text(one, by_label=by_label) for one in advice if _is_possible(one, settings)]
    return list(dict.fromkeys(map(without_secrets, texts)))


def _is_possible(advice: Advice, settings: Collection[str]) -> bool:
    if isinstance(advice, str):
        return True
    if advice.kind == "run":
        words = advice.command.split()
        # Others need a terminal, and a path that a request cannot contain.
        return words[:2] != ["hf", "download"] and (words[:1] != ["holdfast"] or words[1:2] in (["models"], ["doctor"]))
    return advice.setting in settings and not (advice.value is None and advice.placeholder in _PATHS)


def _advice_text(advice: Advice, *, by_label: bool) -> str:
    if isinstance(advice, str):
        return advice
    name = label_of(advice.setting) if by_label else advice.setting
    if advice.kind == "run":
        text = _INSTEAD.get(advice.command) or f"on the machine that trains: {advice.command}"
    elif advice.kind == "unset":
        text = f"leave {name} empty"
    elif advice.value is None:
        text = f"choose the {name}" if by_label else f"set {name}"
    elif isinstance(advice.value, bool):
        yes, no = ("yes", "no") if by_label else ("true", "false")
        text = f"set {name} to {yes if advice.value else no}"
    else:
        text = f"set {name} to {advice.value:g}" if isinstance(advice.value, float) else f"set {name} to {advice.value}"
    return f"{text} ({advice.note})" if advice.note else text
