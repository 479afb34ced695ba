"""Reads the value of one setting, checked against the type and range that its field states."""

import dataclasses
import math
from pathlib import Path
from typing import Any

from holdfast.core.path_guess import URL_ADVICE, is_url
from holdfast.core.text import closest

TRACKERS = ("tensorboard", "mlflow", "wandb", "trackio")
_TRUE, _FALSE = ("true", "yes", "on", "1"), ("false", "no", "off", "0")


def allowed_words(field: "dataclasses.Field[Any]") -> str:
    """The allowed values of a setting as text; empty if anything is allowed."""
    about = field.metadata
    if about["allowed"]:
        return ", ".join(about["allowed"])
    if about["kind"] == "flag":
        return "true or false"
    if about["low"] is None:
        return ""
    return f"{_plain(about['low'])} to {_plain(about['high'])}" if about["high"] else f"{_plain(about['low'])} or more"


def read_value(field: "dataclasses.Field[Any]", value: object) -> object:
    """The value that was given, converted; ValueError says what is allowed."""
    about = field.metadata
    kind = about["kind"]
    if kind in ("whole", "number"):
        return _number(value, field)
    if kind == "flag":
        word = str(value).strip().lower()
        if word not in (*_TRUE, *_FALSE):
            raise ValueError("allowed: true or false")
        return word in _TRUE
    if kind == "texts":
        found = tuple(map(str, value)) if isinstance(value, (list, tuple)) else (str(value),)
        if any("\0" in text for text in found):
            raise ValueError("contains a NUL character")
        return _trackers(found) if field.name == "report_to" else found
    if not isinstance(value, (str, Path)):
        raise ValueError("must be text")
    text = str(value)
    if "\0" in text:
        raise ValueError("contains a NUL character")
    if about["allowed"] and text not in about["allowed"]:
        guess = closest(text, about["allowed"]) if len(text) > 3 else None  # "gpu" is not a misspelled "cpu"
        raise ValueError(f"allowed: {allowed_words(field)}" + (f"; did you mean {guess}?" if guess else ""))
    if kind == "path" and is_url(text):
        raise ValueError(URL_ADVICE)
    if kind == "path" and text:
        return str(Path(text).expanduser().absolute())
    if field.name == "delimiter" and text in ("tab", "\\t"):
        return "\t"
    return text


def _number(value: object, field: "dataclasses.Field[Any]") -> int | float:
    about = field.metadata
    low, high, is_whole = about["low"], about["high"], about["kind"] == "whole"
    bounds = f"; allowed: {words}" if (words := allowed_words(field)) else ""
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


def _trackers(found: tuple[str, ...]) -> tuple[str, ...]:
    names = tuple(name.strip() for text in found for name in text.split(",") if name.strip() not in ("", "none"))
    for name in names:
        if name not in TRACKERS:
            guess = closest(name, TRACKERS)
            raise ValueError(f"allowed: {', '.join(TRACKERS)}" + (f"; did you mean {guess}?" if guess else ""))
    return names


def _plain(number: float) -> str:
    return f"{int(number):,}" if number == int(number) else f"{number:g}"
