"""The form of a new run: every setting of `train` that users may set, with its help, its range and its error."""

from collections.abc import Mapping, Sequence
from dataclasses import Field, dataclass
from typing import Any

from holdfast.core.request import FIELDS
from holdfast.core.setting_values import allowed_words
from holdfast.runs.models import known_names
from holdfast.service.jobs.requests import OPEN_FIELDS
from holdfast.service.jobs.shown_errors import label_of

COMMON = ("task", "preset", "model", "epochs", "batch_size", "lr", "max_length", "device")
_GROUPS = (
    ("data", "Data"),
    ("learning", "Training"),
    ("machine", "Hardware"),
    ("run", "Run"),
)


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
    return tuple(_field(name, FIELDS[name], values, errors) for name in COMMON if name in OPEN_FIELDS)


def make_groups(
    values: Mapping[str, str], errors: Mapping[str, str], more: Mapping[str, Sequence[FormField]]
) -> tuple[FormGroup, ...]:
    """All other settings by group; a group with values or errors is open."""
    found = []
    for group, title in _GROUPS:
        names = [name for name, field in OPEN_FIELDS.items() if field.metadata["group"] == group and name not in COMMON]
        fields = (*(_field(name, FIELDS[name], values, errors) for name in names), *more.get(group, ()))
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
    return {name: _shown(value) for name, value in given.items() if name in OPEN_FIELDS and value is not None}


def read_settings(values: Mapping[str, str]) -> dict[str, object]:
    """The settings as `make_request` takes them; an empty control is left out."""
    found: dict[str, object] = {}
    for name, field in OPEN_FIELDS.items():
        text = values.get(name, "")
        if field.metadata["kind"] == "texts":
            parts = tuple(part.strip() for part in text.split(",") if part.strip())
            if parts:
                found[name] = parts
        elif text.strip() or (text and name in ("delimiter", "query_prefix", "passage_prefix")):
            found[name] = text if name.endswith("prefix") or name == "delimiter" else text.strip()
    return found


def _field(name: str, field: "Field[Any]", values: Mapping[str, str], errors: Mapping[str, str]) -> FormField:
    about, value = field.metadata, values.get(name, "")
    kind = about["kind"]
    default = _shown(field.default) if field.default not in (None, (), "") else ""
    hint = f"default: {default}" if default else "default: automatic"
    hint += "; separate with commas" if kind == "texts" else ""
    choices: tuple[tuple[str, str], ...] = ()
    if about["allowed"]:
        choices = tuple((one, one) for one in about["allowed"])
    elif kind == "flag":
        choices = (("true", "yes"), ("false", "no"))
    words = {"true": "yes", "false": "no"}.get(default, default)
    empty = {"task": "detect from the data", "preset": "none"}.get(name, "automatic")
    first = (("", words if choices and default else empty),)
    options = tuple(Option(one, said, one == value) for one, said in (*first, *choices)) if choices else ()
    span = "" if choices else allowed_words(field)
    return FormField(
        name=name,
        label=label_of(name),
        help=_help(name, str(about["text"])) + (f" From {span}." if " to " in span else f" {span}." if span else ""),
        value=value,
        options=options,
        hint="" if choices else hint,
        suggestions=known_names() if name == "model" else (),
        error=errors.get(name, ""),
        is_number=kind in ("whole", "number"),
    )


def _help(name: str, text: str) -> str:
    """The help of the setting, without what only the command line accepts."""
    if name == "model":
        return "Model to start from: " + ", ".join(known_names()) + ", or a name on the hub."
    return text.replace(" (--single-label)", "")


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return f"{value:g}"
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
