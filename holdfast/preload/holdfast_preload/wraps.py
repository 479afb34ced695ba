"""Wraps functions of libraries. A name that is missing in this version is only an event."""

from __future__ import annotations

import functools
import inspect
from typing import Any, Callable

from holdfast_preload import event_writer
from holdfast_preload.beat_page import BEAT, EVALUATE, FIRST_STEP, NUMBERS

Function = Callable[..., Any]


def around(owner: Any, name: str, make: Callable[[Function], Function]) -> bool:
    """Replace `owner.name` by `make(original)`, keeping its kind; return whether it existed."""
    found = inspect.getattr_static(owner, name, None)
    if found is None:
        event_writer.write_once("not_observed", module=getattr(owner, "__module__", owner.__name__), name=name)
        return False
    if isinstance(found, (classmethod, staticmethod)):
        inner = found.__func__
        setattr(owner, name, type(found)(functools.wraps(inner)(make(inner))))
    else:
        setattr(owner, name, functools.wraps(found)(make(found)))
    return True


def in_phase(phase: str) -> Callable[[Function], Function]:
    """Wrap a function so that it runs in a phase."""
    number = NUMBERS[phase]

    def make(function: Function) -> Function:
        def phased(*args: Any, **kwargs: Any) -> Any:
            before = BEAT.enter(number)
            try:
                return function(*args, **kwargs)
            finally:
                BEAT.leave(before)

        return phased

    return make


def given(function: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a call by name, to read and change; call the function with `**` of the result."""
    bound = inspect.signature(function).bind_partial(*args, **kwargs)
    named = dict(bound.arguments)
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind is parameter.VAR_KEYWORD:
            named.update(named.pop(parameter.name, {}))
        elif parameter.kind is parameter.VAR_POSITIONAL and named.get(parameter.name):
            raise TypeError(f"{function.__qualname__} takes *{parameter.name}")
    return named


def then_first_step(init: Function) -> Function:
    """Wrap an optimizer's `__init__`: what follows is the first step."""

    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807  (takes the place of a method)
        init(self, *args, **kwargs)
        if not BEAT.step:
            BEAT.enter(FIRST_STEP)

    return __init__


def then_evaluate(to_eval: Function) -> Function:
    """Wrap a module's `eval`: between steps it begins an evaluation."""

    def eval_(self: Any) -> Any:
        if BEAT.step:
            BEAT.enter(EVALUATE)
        return to_eval(self)

    return eval_
