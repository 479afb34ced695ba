"""The form of a new run: every setting of `train` that users may set, with its help, its range and its error."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from holdfast.core.setting_values import allowed_words
from holdfast.core.settings import GROUPS, OPEN_SETTINGS, Setting
from holdfast.runs.models import known_names
from holdfast.service.jobs.shown_errors import label_of

# The settings that most users need; those about the data follow from the dataset.
COMMON = tuple(name for name, one in OPEN_SETTINGS.items() if "basic" in one.traits and one.affects != "data")


@dataclass(frozen=True, slots=True)
class Option:
    """One entry of a choice."""

    value: str
    words: str
    is_chosen: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class FormField:
    """One control with its label, help and error."""

    name: str
    label: str
    help: str
    value: str
    options: tuple[Option, ...] = ()  # of a choice; empty for a text input
    hint: str = ""  # what an empty control means
    suggestions: tuple[str, ...] = ()
    error: str = ""
    is_number: bool = False


@dataclass(frozen=True, slots=True)
class FormGroup:
    """Settings that belong together, folded away at first."""

    title: str
    fields: tuple[FormField, ...]
    is_open: bool


def make_fields(values: Mapping[str, str], errors: Mapping[str, str]) -> tuple[FormField, ...]:
    """The settings that most users need."""
    return tuple(_field(OPEN_SETTINGS[name], values, errors) for name in COMMON)


def make_groups(
    values: Mapping[str, str], errors: Mapping[str, str], more: Mapping[str, Sequence[FormField]]
) -> tuple[FormGroup, ...]:
    """All other settings by group; a group with values or errors is open."""
    found = []
    for group, title in GROUPS.items():
        settings = [one for name, one in OPEN_SETTINGS.items() if one.affects == group and name not in COMMON]
        fields = (*(_field(one, values, errors) for one in settings), *more.get(group, ()))
        found.append(FormGroup(title, fields, any(field.value or field.error for field in fields)))
    return tuple(found)


def choice_field(
    name: str, label: str, help_words: str, options: Mapping[str, str], value: str, none: str, error: str = ""
) -> FormField:
    """A choice that is not a setting, such as a dataset; `none` labels the empty choice."""
    chosen = value if value in options else ""
    return FormField(
        name=name,
        label=label,
        help=help_words,
        value=chosen,
        options=tuple(Option(one, words, one == chosen) for one, words in {"": none, **options}.items()),
        error=error,
    )


def read_values(given: Mapping[str, Any]) -> dict[str, str]:
    """The values of the controls, from the settings of a run."""
    return {name: _shown(value) for name, value in given.items() if name in OPEN_SETTINGS and value is not None}


def read_settings(values: Mapping[str, str]) -> dict[str, object]:
    """The settings as `make_request` takes them; an empty control is left out."""
    found: dict[str, object] = {}
    for name, setting in OPEN_SETTINGS.items():
        text = values.get(name, "")
        if setting.kind == "texts":
            parts = tuple(part.strip() for part in text.split(",") if part.strip())
            if parts:
                found[name] = parts
        elif setting.kind == "exact" and text:
            found[name] = text
        elif text.strip():
            found[name] = text.strip()
    return found


def _field(setting: Setting, values: Mapping[str, str], errors: Mapping[str, str]) -> FormField:
    name, kind, value = setting.name, setting.kind, values.get(setting.name, "")
    default = _shown(setting.default) if setting.has_default else ""
    hint = f"default: {default}" if default else "default: automatic"
    hint += "; separate with commas" if kind == "texts" else ""
    choices: tuple[tuple[str, str], ...] = ()
    if setting.allowed:
        choices = tuple((one, one) for one in setting.allowed)
    elif kind == "flag":
        choices = (("true", "yes"), ("false", "no"))
    words = {"true": "yes", "false": "no"}.get(default, default)
    empty = {"task": "detect from the data", "preset": "none"}.get(name, "automatic")
    first = (("", words if choices and default else empty),)
    options = tuple(Option(one, said, one == value) for one, said in (*first, *choices)) if choices else ()
    span = "" if choices else allowed_words(setting)
    return FormField(
        name=name,
        label=label_of(name),
        help=_help(setting) + (f" From {span}." if " to " in span else f" {span}." if span else ""),
        value=value,
        options=options,
        hint="" if choices else hint,
        suggestions=known_names() if name == "model" else (),
        error=errors.get(name, ""),
        is_number=kind in ("whole", "number"),
    )


def _help(setting: Setting) -> str:
    """The help of the setting, without what only the command line accepts."""
    if setting.name == "model":
        return "Model to start from: " + ", ".join(known_names()) + ", or a name on the hub."
    return re.sub(r"--([a-z-]+)", lambda found: label_of(found[1].replace("-", "_")), setting.help)


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return f"{value:g}"
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
