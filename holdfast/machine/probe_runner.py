"""Runs many probes at once, each in its own thread and within its time limit, and collects their answers as facts.

A probe that crashes, lacks a tool or does not return is listed as unanswered with its reason; the others continue.
"""

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from holdfast.core.facts import Answer, MachineFacts
from holdfast.machine.commands import Unanswerable

_TICK_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class Probe:
    """One question: which facts it fills, the function that answers it, and how long to wait."""

    name: str
    ask: Callable[[], Answer[Any]]  # with `fills`, the value maps each fact's name to its value
    limit_seconds: float = 10.0
    fills: tuple[str, ...] = ()  # the fact of the probe's own name when empty

    def facts(self) -> tuple[str, ...]:
        """The facts that an answer fills."""
        return self.fills or (self.name,)


class ProbeRunner:
    """Running probes. Facts can be read as they arrive; `close` ends what is still running."""

    def __init__(
        self, probes: Iterable[Probe], doing: Mapping[str, str] | None = None, stop: Callable[[], None] = lambda: None
    ):
        self.probes = tuple(probes)
        self.doing = {} if doing is None else doing  # the current activity of a long probe, written by the probe
        self.close = stop  # ends the processes that probes started
        self.extras: dict[str, Any] = {}  # parts of answers that are not facts
        self._values: dict[str, Any] = {}
        self._sources: dict[str, str] = {}
        self._reasons: dict[str, list[str]] = {}
        self._open = {probe.name for probe in self.probes}
        self._changed = threading.Condition()
        self._started = 0.0

    def start(self) -> "ProbeRunner":
        """Start all probes."""
        self._started = time.monotonic()
        for probe in self.probes:
            # Daemon threads: one that hangs in a dead disk or driver must not keep the command from ending.
            threading.Thread(target=self._ask, args=(probe,), name=f"probe-{probe.name}", daemon=True).start()
        return self

    def wait_for(self, names: Iterable[str], on_wait: Callable[[list[str], float], None] = lambda *_: None) -> None:
        """Wait until these probes have answered or timed out; report the open ones and the time so far."""
        wanted = set(names)
        while True:
            waited = time.monotonic() - self._started
            with self._changed:
                still_open = [probe for probe in self.probes if probe.name in self._open & wanted]
                for probe in still_open:
                    if waited > probe.limit_seconds:
                        self._close(probe.name, f"no response within {probe.limit_seconds:g} s")
                if not self._open & wanted:
                    return
                self._changed.wait(_TICK_SECONDS)
            on_wait([self.doing.get(probe.name, probe.name) for probe in still_open], waited)

    def facts(self) -> MachineFacts:
        """The facts known so far."""
        with self._changed:
            names = [probe.name for probe in self.probes]
            unanswered = tuple(f"{name}: {reason}" for name in names for reason in self._reasons.get(name, ()))
            in_order = [fact for probe in self.probes for fact in probe.facts() if fact in self._sources]
            sources = {fact: self._sources[fact] for fact in in_order}
            return MachineFacts(**self._values, unanswered=unanswered, sources=sources)

    def all_facts(self, on_wait: Callable[[list[str], float], None] = lambda *_: None) -> MachineFacts:
        """Wait for every probe and return all facts."""
        self.wait_for([probe.name for probe in self.probes], on_wait)
        return self.facts()

    def _ask(self, probe: Probe) -> None:
        try:
            answer = probe.ask()
        except Unanswerable as error:
            self._settle(probe, None, str(error))
        except BaseException as error:
            self._settle(probe, None, f"{type(error).__name__}: {error}" if str(error) else type(error).__name__)
        else:
            self._settle(probe, answer, "")

    def _settle(self, probe: Probe, answer: Answer[Any] | None, reason: str) -> None:
        with self._changed:
            if probe.name not in self._open:  # too late
                return
            if answer is None:
                self._close(probe.name, reason)
                return
            filled: Mapping[str, Any] = answer.value if probe.fills else {probe.name: answer.value}
            for key, value in filled.items():
                if key == "unanswered":
                    self._reasons.setdefault(probe.name, []).extend(value)
                elif key in probe.facts():
                    self._values[key], self._sources[key] = value, answer.source
                else:
                    self.extras[key] = value
            self._close(probe.name)

    def _close(self, name: str, reason: str = "") -> None:
        self._open.discard(name)
        if reason:
            self._reasons.setdefault(name, []).append(reason)
        self._changed.notify_all()
