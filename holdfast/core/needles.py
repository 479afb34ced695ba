"""Says quickly that a pattern cannot match a text: each match needs one of a few words, and none of them is there.

Hundreds of patterns look at every log, and almost none of them has anything to find. Words are compared in small
letters and without digits, so a text may first be boiled down to one line of each shape.
"""

import re
from collections.abc import Iterable
from functools import lru_cache
from importlib import import_module
from typing import Any

_SHORTEST = 3
_MOST_WORDS = 24
_NUMBERS = re.compile(r"\d+")


@lru_cache(maxsize=4096)
def needles(pattern: str) -> tuple[str, ...]:
    """Words of which every match holds at least one, in small letters; none when that cannot be told."""
    try:
        # The parser is private to `re`. Without it no word is known, and every pattern is simply tried.
        tree = import_module("re._parser").parse(pattern, re.MULTILINE)
    except (ImportError, AttributeError, re.error):
        return ()
    words = _of_sequence(tree)
    return words if len(words) <= _MOST_WORDS else ()


def sketch(lines: Iterable[str]) -> str:
    """One line of each shape, in small letters; lines that differ only in their numbers are one shape."""
    shapes: dict[str, None] = {}
    for line in lines:
        shapes.setdefault(_NUMBERS.sub("0", line))
    return "\n".join(shapes).lower()


def _of_sequence(items: Iterable[Any]) -> tuple[str, ...]:
    """The best words of a sequence: any one of its parts will do, since all of them must match."""
    best: tuple[str, ...] = ()
    run = ""
    for name, argument in ((str(item[0]), item[1]) for item in items):
        letter = chr(argument) if name == "LITERAL" else ""
        if letter and not letter.isdigit() and not letter.isspace():
            run += letter.lower()
            continue
        for words in ((run,), _run_and_branches(run, name, argument), _of_part(name, argument)):
            best = _better(best, words)
        run = ""
    return _better(best, (run,))


def _run_and_branches(run: str, name: str, argument: Any) -> tuple[str, ...]:
    """The letters before a choice together with those that begin each branch: "sig" and (segv|bus) are two words."""
    if run and name == "SUBPATTERN" and len(argument[-1]) == 1:
        name, argument = str(argument[-1][0][0]), argument[-1][0][1]
    if not run or name != "BRANCH":
        return ()
    return tuple(dict.fromkeys(run + _leading(branch) for branch in argument[1]))


def _leading(items: Iterable[Any]) -> str:
    letters = ""
    for name, argument in ((str(item[0]), item[1]) for item in items):
        if name != "LITERAL" or chr(argument).isdigit() or chr(argument).isspace():
            break
        letters += chr(argument).lower()
    return letters


def _of_part(name: str, argument: Any) -> tuple[str, ...]:
    if name == "SUBPATTERN":
        return _of_sequence(argument[-1])
    if name == "ATOMIC_GROUP":
        return _of_sequence(argument)
    if name in ("MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT") and argument[0] > 0:
        return _of_sequence(argument[-1])
    if name == "BRANCH":
        branches = [_of_sequence(branch) for branch in argument[1]]
        return tuple(dict.fromkeys(word for words in branches for word in words)) if all(branches) else ()
    return ()


def _better(old: tuple[str, ...], new: tuple[str, ...]) -> tuple[str, ...]:
    """Prefer the words whose shortest is longest; of equals the fewer."""
    if not new or min(map(len, new)) < _SHORTEST:
        return old
    if not old or (min(map(len, new)), -len(new)) > (min(map(len, old)), -len(old)):
        return new
    return old
