"""Reads settings as they were given: checks every value against its entry in the table, and all of them together."""

import math
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from holdfast.core.errors import Problem, RequestError, invalid_settings
from holdfast.core.path_guess import URL_ADVICE, is_url
from holdfast.core.settings import OPEN_SETTINGS, PRESETS, SETTINGS, Setting, TrainRequest, named
from holdfast.core.text import closest

NEEDLESS_WAIT = "only for several machines; give their number too"
_TRUE, _FALSE = ("true", "yes", "on", "1"), ("false", "no", "off", "0")
_JSON_TYPES = {"texts": "array", "whole": "integer", "number": "number", "flag": "boolean"}


def make_request(given: Mapping[str, object]) -> TrainRequest:
    """Check all given settings, under any of their names; all problems are reported at once."""
    problems: list[Problem] = []
    values: dict[str, Any] = {}
    for name, value in given.items():
        setting = named(name)
        if setting is None:
            problems.append(_unknown(name))
        elif value is not None and value != ():
            try:
                values[setting.name] = read_value(setting, value)
            except ValueError as error:
                problems.append(Problem(setting.name, str(error), _shown(value)))
    invalid = {problem.setting for problem in problems}
    problems += (problem for problem in _together(values) if problem.setting not in invalid)
    if problems:
        raise invalid_settings(problems)
    return TrainRequest(**values)


def read_toml(path: Path) -> dict[str, object]:
    """Read a request file; its tables only group settings and have no meaning."""
    try:
        found = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise RequestError(f"{path} cannot be read", found=error.strerror or str(error)) from error
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise RequestError(f"{path} is not TOML", found=str(error)) from error
    return dict(_flat(found))


def allowed_words(setting: Setting) -> str:
    """The allowed values of a setting as text; empty if anything is allowed."""
    if setting.allowed:
        return ", ".join(setting.allowed)
    if setting.kind == "flag":
        return "true or false"
    if setting.low is None:
        return ""
    if setting.high is None:
        return f"{_plain(setting.low)} or more"
    return f"{_plain(setting.low)} to {_plain(setting.high)}"


def settings_schema() -> dict[str, Any]:
    """The settings that a user of the service may set, as JSON Schema; numbers may also be given as text."""
    return {name: _schema(one) for name, one in OPEN_SETTINGS.items()}


def _schema(setting: Setting) -> dict[str, object]:
    one: dict[str, object] = {"description": setting.help, "type": _JSON_TYPES.get(setting.kind, "string")}
    if setting.kind == "texts":
        one["items"] = {"type": "string"}
    if setting.allowed:
        one["enum"] = list(setting.allowed)
    bounds = {"minimum": setting.low, "maximum": setting.high, "default": setting.default or None}
    return one | {name: value for name, value in bounds.items() if value is not None}


def read_value(setting: Setting, value: object) -> object:
    """The value that was given, converted; ValueError says what is allowed."""
    if setting.kind in ("whole", "number"):
        return _number(value, setting)
    if setting.kind == "flag":
        word = str(value).strip().lower()
        if word not in (*_TRUE, *_FALSE):
            raise ValueError("allowed: true or false")
        return word in _TRUE
    if setting.kind == "texts":
        found = tuple(map(str, value)) if isinstance(value, (list, tuple)) else (str(value),)
        if any("\0" in text for text in found):
            raise ValueError("contains a NUL character")
        return _each_allowed(found, setting) if setting.allowed else found
    if not isinstance(value, (str, Path)):
        raise ValueError("must be text")
    text = str(value)
    if "\0" in text:
        raise ValueError("contains a NUL character")
    if setting.allowed:
        _require_allowed(text, setting)
    if setting.kind == "path" and is_url(text):
        if "url" in setting.traits:
            return text
        raise ValueError(URL_ADVICE)
    if setting.kind == "path" and text:
        return str(Path(text).expanduser().absolute())
    if setting.name == "delimiter" and text in ("tab", "\\t"):
        return "\t"
    return text


def _number(value: object, setting: Setting) -> int | float:
    low, high, is_whole = setting.low, setting.high, setting.kind == "whole"
    bounds = f"; allowed: {words}" if (words := allowed_words(setting)) else ""
    if isinstance(value, bool):
        raise ValueError(f"must be a number{bounds}")
    try:
        number = float(str(value).replace("_", ""))
    except ValueError:
        raise ValueError(f"must be a number{bounds}") from None
    if not math.isfinite(number) or (low is not None and number < low) or (high is not None and number > high):
        raise ValueError(f"out of range{bounds}")
    if is_whole and number != int(number):
        raise ValueError(f"must be a whole number{bounds}")
    return int(number) if is_whole else number


def _each_allowed(found: tuple[str, ...], setting: Setting) -> tuple[str, ...]:
    """Names from a list, in which each text may have several, separated by commas."""
    names = tuple(name.strip() for text in found for name in text.split(",") if name.strip() not in ("", "none"))
    for name in names:
        _require_allowed(name, setting)
    return names


def _require_allowed(text: str, setting: Setting) -> None:
    if text not in setting.allowed:
        guess = closest(text, setting.allowed) if len(text) > 3 else None  # "gpu" is not a misspelled "cpu"
        raise ValueError(f"allowed: {allowed_words(setting)}" + (f"; did you mean {guess}?" if guess else ""))


def _unknown(name: str) -> Problem:
    names = [*SETTINGS, *(other for one in SETTINGS.values() for other in one.aliases)]
    guess = closest(name.replace("-", "_"), names)
    return Problem("", f"unknown setting {name!r}" + (f"; did you mean {guess}?" if guess else ""))


def _together(values: Mapping[str, Any]) -> Iterator[Problem]:
    """Settings that do not go together."""
    if not values.get("data") and not values.get("from_run"):
        yield Problem("data", "missing; give a file or a folder to train on")
    if values.get("validation_share", 0.1) + values.get("test_share", 0.1) > 0.95:
        yield Problem("validation_share", "together with the test share, this leaves nothing to train on")
    if "fold" in values and values["fold"] > values.get("folds", 0):
        yield Problem("fold", "also needs folds, the number of parts, which must not be smaller", str(values["fold"]))
    if values.get("folds") and "fold" not in values and values.get("nodes", 1) > 1:
        yield Problem("folds", "not with several machines; give each fold a run of its own")
    if values.get("folds"):
        yield from (
            Problem("folds", f"makes its own test rows, so leave out {name}")
            for name in ("test", "validation", "test_share")
            if name in values
        )
    if values.get("nodes", 1) > 1 and not values.get("out"):
        yield Problem("out", "required with several machines; give a folder on storage that they all share")
    if "nodes_wait" in values and values.get("nodes", 1) == 1:
        yield Problem("nodes_wait", NEEDLESS_WAIT)
    if "per_device_train_batch_size" in values and "batch_size" in values:
        yield Problem(
            "per_device_train_batch_size",
            "cannot be combined with batch_size, which already counts the examples of all processes",
            str(values["per_device_train_batch_size"]),
        )
    if "gradient_accumulation_steps" in values and "per_device_train_batch_size" not in values:
        yield Problem(
            "gradient_accumulation_steps",
            "multiplies per_device_train_batch_size, which is missing; batch_size already counts a whole step",
            str(values["gradient_accumulation_steps"]),
        )
    if values.get("backend") == "mlx":
        for name in ("device", "processes", "nodes", "compile"):
            if values.get(name) not in (None, 1, False):
                yield Problem(name, "cannot be combined with the MLX backend, which decides this itself", values[name])
    elif values.get("load_in_4bit"):
        yield Problem("load_in_4bit", "requires the MLX backend: --backend mlx")
    task, lora = values.get("task"), values.get("lora")
    if values.get("load_in_4bit") and (lora is False or task in ("classify", "two-tower")):
        yield Problem("load_in_4bit", "requires LoRA: weights in 4 bits are not trained")
    if lora and task in ("classify", "two-tower"):
        yield Problem("lora", f"only for causal models, not for {task}")
    preset_task = PRESETS.get(values.get("preset", ""), {}).get("task", task)
    if task is not None and preset_task != task:
        yield Problem("preset", f"only for {preset_task}, not for {task}", values["preset"])
    if lora is False:
        for name in ("lora_r", "lora_alpha", "lora_dropout", "lora_target_modules"):
            if values.get(name):
                yield Problem(name, "requires LoRA, which was turned off", _shown(values[name]))


def _flat(found: Mapping[str, Any]) -> Iterator[tuple[str, object]]:
    for name, value in found.items():
        if isinstance(value, dict):
            yield from _flat(value)
        else:
            yield name, value


def _plain(number: float) -> str:
    return f"{int(number):,}" if number == int(number) else f"{number:g}"


def _shown(value: object) -> str:
    text = ", ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)
    return text if len(text) <= 60 else text[:60] + "..."
