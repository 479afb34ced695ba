"""What the command line says, in the words of a page or of the API: settings have names there, and no folders.

Sentences come with the options of `train` ("--batch-size 8, which changes what is learned"). A page calls a setting by
its label, the API by its key. What only somebody at a machine can do is said to be for the machine that trains; what
needs a path of one's own is left out, since nobody can give one here.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from holdfast.core.errors import Action, advice_text
from holdfast.core.request import FIELDS, REMOTE_FIELDS

_LABELS = {
    "validation": "validation data",
    "test": "test data",
    "negatives": "near-misses of queries",
    "lr": "learning rate",
    "lr_scheduler_type": "learning rate schedule",
    "eval_steps": "steps between evaluations",
    "keep": "weights to keep",
    "prove": "proof",
    "lora": "LoRA",
    "lora_r": "LoRA rank",
    "lora_alpha": "LoRA alpha",
    "lora_dropout": "LoRA dropout",
    "lora_target_modules": "LoRA target modules",
}
_GIVEN = {*FIELDS, "dataset", "team"}
_OPTION = re.compile(r"--([a-z][a-z0-9-]*)")
_ADVICE = re.compile(r"--([a-z][a-z0-9-]*) (\S.*)")
_ON_THE_MACHINE = ("pip install", "python -m", "git lfs", "hf ", "holdfast models", "holdfast doctor", "chmod")
_PATHS = ("FOLDER", "FILE", "holdfast ")


@dataclass(frozen=True, slots=True)
class Said:
    """A refusal in the words of a place."""

    what: str
    seen: str
    try_next: tuple[str, ...]


def label_of(setting: str) -> str:
    """What a page calls a setting."""
    return _LABELS.get(setting, setting.replace("_", " "))


def key_of(setting: str) -> str:
    """What the API calls a setting."""
    return setting


def said_in(name: Callable[[str], str], what: object, seen: object, try_next: object) -> Said:
    """A refusal, its settings called as `name` calls them."""
    advice = try_next if isinstance(try_next, list | tuple) else ()
    return Said(named_in(name, str(what)), named_in(name, str(seen or "")), tuple(_advice(map(_line, advice), name)))


def named_in(name: Callable[[str], str], text: str) -> str:
    """A sentence, its settings called as `name` calls them."""

    def called(found: "re.Match[str]") -> str:
        setting = found[1].replace("-", "_")
        return name(setting) if setting in _GIVEN else found[0]

    return _OPTION.sub(called, text)


def problem_in(name: Callable[[str], str], problem: Mapping[str, Any]) -> dict[str, Any]:
    """A kept refusal, as rows hold it, with its other fields as they are."""
    said = said_in(name, problem.get("what", ""), problem.get("seen", ""), problem.get("try_next", ()))
    return {**problem, "what": said.what, "seen": said.seen, "try_next": list(said.try_next)}


def _line(advice: object) -> str:
    action = Action(**advice) if isinstance(advice, dict) else advice
    return advice_text(action) if isinstance(action, Action) else str(action)


def _advice(lines: Iterable[str], name: Callable[[str], str]) -> Iterable[str]:
    for line in lines:
        line = line.replace(", a folder,", ",")
        if line.startswith(_ON_THE_MACHINE):
            yield f"on the machine that trains: {line}"
        elif any(word in line for word in _PATHS) or _asks_for_a_path(line):
            continue
        elif (found := _ADVICE.fullmatch(line)) and (setting := found[1].replace("-", "_")) in _GIVEN:
            yield f"set {name(setting)} to {named_in(name, found[2])}"
        else:
            yield named_in(name, line)


def _asks_for_a_path(line: str) -> bool:
    asked = {found.replace("-", "_") for found in _OPTION.findall(line)}
    return bool(asked & (set(FIELDS) - set(REMOTE_FIELDS)))
