"""The evidence of a failure, and the conclusions from it.

Evidence is text with line numbers, from named sources, plus how the process ended and what the supervisor saw. It holds
no judgment: hazards look for their signs in it, and `hazards.diagnose` weighs what they find.
"""

import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from importlib import import_module
from typing import Any, Literal, TypeVar

from msgspec import Struct

from holdfast.core.observations import (
    AnyObservation,
    CodePlace,
    ExitStatus,
    GivenUp,
    KernelKill,
    Observation,
    OomKill,
    OwnCode,
    ProcessExit,
    RankStack,
    TreeVerdict,
)
from holdfast.core.plan import Fallback, Reason, Remedy

Source = Literal["log", "error", "frame", "version"]
Confidence = Literal["proven", "likely", "unknown"]
Kind = TypeVar("Kind", bound=Observation)


class Passage(Struct, frozen=True, tag="passage", tag_field="type"):
    """One line of text that is evidence."""

    source: Source
    line: int  # in the source file, counted from 1; 0 without a file
    text: str


Seen = Passage | AnyObservation  # what a conclusion can rest on


class Text:
    """Numbered lines of one source, searchable as one string."""

    __slots__ = ("_firsts", "_numbers", "_sketch", "_starts", "joined", "source")

    def __init__(self, source: Source, lines: Iterable[tuple[int, str]] = ()):
        self.source: Source = source
        self._starts: list[int] = []
        self._numbers: list[int] = []
        parts: list[str] = []
        offset = 0
        for number, line in lines:
            self._starts.append(offset)
            self._numbers.append(number)
            parts.append(line)
            offset += len(line) + 1
        self.joined = "\n".join(parts)
        self._sketch: str | None = None  # one line of each shape, made on first use
        self._firsts: dict[str, Passage | None] = {}

    def __iter__(self) -> Iterator[Passage]:
        for number, line in zip(self._numbers, self.joined.split("\n"), strict=False):
            yield Passage(self.source, number, line)

    def __bool__(self) -> bool:
        return bool(self._numbers)

    def search(self, pattern: str) -> Iterator[tuple[re.Match[str], Passage]]:
        """Find every match with the line it starts on. `^` and `$` mean one line; `.` stays inside it."""
        if not self._may_hold(needles(pattern)):
            return
        for match in compiled(pattern).finditer(self.joined):
            yield match, self._passage_at(match.start())

    def first(self, pattern: str) -> Passage | None:
        """The line of the first match; cached, because hazards share many patterns."""
        if pattern not in self._firsts:
            self._firsts[pattern] = next((passage for _, passage in self.search(pattern)), None)
        return self._firsts[pattern]

    def without(self, is_dropped: Callable[[Passage], bool]) -> "Text":
        """The same text without some of its lines."""
        return Text(self.source, ((passage.line, passage.text) for passage in self if not is_dropped(passage)))

    def line_at(self, offset: int) -> int:
        """The number of the line at an offset in `joined`; 0 in an empty text."""
        return self._numbers[bisect_right(self._starts, offset) - 1] if self._numbers else 0

    def _may_hold(self, words: tuple[str, ...]) -> bool:
        """False if a pattern needs one of these words and none occurs. Ten times faster than trying the pattern."""
        if self._sketch is None:
            self._sketch = sketch(self.joined.split("\n"))
        return not words or any(word in self._sketch for word in words)

    def _passage_at(self, offset: int) -> Passage:
        at = bisect_right(self._starts, offset) - 1
        end = self.joined.find("\n", offset)
        line = self.joined[self._starts[at] : None if end < 0 else end]
        return Passage(self.source, self._numbers[at], line)


@lru_cache(maxsize=4096)
def compiled(pattern: str) -> re.Pattern[str]:
    """Compile a sign's pattern once, when it is first looked for.

    A space also matches a line break: logs are pasted from terminals that wrap long lines.
    """
    if "(?<" in pattern:  # a look-behind must have a fixed width
        return re.compile(pattern, re.MULTILINE)
    tolerant = _SPACE.sub(lambda found: _BREAKABLE if found[0] == " " else found[0], pattern)
    return re.compile(tolerant, re.MULTILINE)


_BREAKABLE = r"(?: |[ ]?\n[ ]{0,8})"
# A class, an escaped character, a repeated space, or a plain space; only the last is touched.
_SPACE = re.compile(r"\[\^?\]?(?:\\.|[^\]\\])*\]|\\.| [*+?{]| ")


@dataclass(frozen=True, slots=True)
class Frame:
    """One frame of a native or Python stack."""

    function: str
    module: str = ""  # library or source file
    address: int | None = None  # its address in memory, if the report has it
    image_base: int | None = None  # where its library was loaded: two bases of one name mean two copies
    line: int = 0  # of the report
    at: int = 0  # the line of its source file; 0 if the report has none


@dataclass(frozen=True, slots=True)
class Stack:
    """The frames of one thread, innermost first."""

    thread: str
    frames: tuple[Frame, ...]
    crashed: bool = False


@dataclass(frozen=True, slots=True)
class Raised:
    """An exception that a Python program printed, with the frames that led to it."""

    line: int  # of the report
    kind: str  # "KeyError", without its module
    message: str  # its first line
    frames: tuple[Frame, ...] = ()  # innermost first
    sources: tuple[str, ...] = ()  # the source line of each frame; empty where the report has none


@dataclass(frozen=True, slots=True)
class ProcessRow:
    """A row of `ps` or `top` in a log."""

    line: int
    pid: int
    state: str  # as printed: "Tl", "R+"
    cpu_percent: float
    command: str


@dataclass(frozen=True, slots=True)
class Hotspot:
    """A function of a profile in a log."""

    line: int
    function: str
    share: float  # of the whole, from 0 to 1


@dataclass(frozen=True, slots=True)
class ProgressBar:
    """The last state of a progress bar in a log."""

    text: str  # its label, such as "Epoch 1" or "Tokenizing"; may be empty
    done: float
    total: float | None
    line: int

    @property
    def fraction(self) -> float | None:
        """How far it got, from 0 to 1; None if the total is unknown."""
        return self.done / self.total if self.total else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """The evidence of one failure, built by `logs.log_text.read_evidence`."""

    log: Text = Text("log")  # every line that was kept
    errors: Text = Text("error")  # "Type: message" of each exception and fatal line, in order
    frames: Text = Text("frame")  # "function (module)" of every frame, innermost first
    exits: tuple[ExitStatus, ...] = ()  # how the process ended, then what the log says of its children
    observations: tuple[Observation, ...] = ()  # what the supervisor saw
    versions: Text = Text("version")  # "torch 2.8.0"
    stacks: tuple[Stack, ...] = ()
    exceptions: tuple[Raised, ...] = ()  # in the order of the log
    processes: tuple[ProcessRow, ...] = ()
    hotspots: tuple[Hotspot, ...] = ()
    progress: tuple[ProgressBar, ...] = ()  # the last state of each progress bar, in the order they were drawn

    def texts(self, source: Source) -> Text:
        """The lines of one source."""
        by_source: dict[Source, Text] = {
            "log": self.log,
            "error": self.errors,
            "frame": self.frames,
            "version": self.versions,
        }
        return by_source[source]

    def observed(self, kind: type[Kind]) -> Iterator[Kind]:
        """The observations of one kind, in the order in which they were made; `ExitStatus` gives the exits."""
        return (seen for seen in (*self.exits, *self.observations) if isinstance(seen, kind))

    @property
    def ended_well(self) -> bool:
        """True when the process is known to have ended with code 0."""
        return len(self.exits) == 1 and self.exits[0].code == 0

    @property
    def is_hang(self) -> bool:
        """True when the process did not end by itself because it hung."""
        return any(status.is_hang for status in self.exits)

    def has_signal(self, *names: str) -> bool:
        """True when one of these signals (any, without names) ended the process or, by the log, a child of it."""
        return any(status.signal in names if names else status.signal for status in self.exits)


BugKind = Literal[
    "missing_key",
    "missing_attribute",
    "none_value",
    "undefined_name",
    "unassigned_name",
    "index_range",
    "wrong_arguments",
    "wrong_type",
    "shape",
    "device",
    "unpack",
    "conversion",
    "missing_file",
    "import",
    "assertion",
    "division",
    "syntax",
    "recursion",
    "interrupted",
    "other",
]


class OrdinaryBug(Struct, frozen=True, kw_only=True):
    """An exception that no hazard explains, and the line of the user's own code that led to it."""

    kind: BugKind
    error: str  # its type
    message: str
    line: int  # of the log
    place: CodePlace | None = None  # None when the log has no frame of the user's own code
    raised_in: str = ""  # the package that raised it, when the own code only called it
    value: str = ""  # the wrong value, as the message prints it
    near: str = ""  # a similar name elsewhere in the log


class Pin(Struct, frozen=True):
    """A version that something asks for."""

    source: str  # "requirements.txt:3", or the package "trl 0.9.6"
    requirement: str  # "transformers<4.46"
    is_met: bool


class InstalledName(Struct, frozen=True, kw_only=True):
    """What an installed package has of a name that a program asked it for."""

    library: str
    version: str
    folder: str
    name: str
    has_name: bool  # in the module or class that was asked
    near: tuple[str, ...] = ()  # similar names that are there
    gone_since: str = ""  # the version that a note in the package's files names
    pins: tuple[Pin, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """The named cause with its proof; the slug is "unknown" if no cause is established."""

    slug: str
    confidence: Confidence
    title: str
    because: tuple[Seen, ...] = ()
    runner_up: str | None = None
    remedies: tuple[Remedy, ...] = ()
    sources: tuple[str, ...] = ()
    note: str = ""  # why no cause was named, if none was
    installed: InstalledName | None = None  # of version drift, on the machine where it happened
    bug: OrdinaryBug | None = None  # when no cause was named and the program raised an exception
    harmless: tuple[str, ...] = ()  # alarming lines that mean nothing, each with the reason


RuledOut = Literal["memory_kill", "crash_of_another_process", "full_disk", "deadlock"]


class Cause(Struct, frozen=True, kw_only=True, omit_defaults=True, tag="cause", tag_field="type"):
    """Why an attempt failed: the diagnosis with the facts that one sentence about it needs."""

    slug: str
    confidence: Confidence
    title: str
    exit: ExitStatus | None = None
    phase: str = ""
    step: int = 0
    steps: int = 0
    proof: Seen | None = None  # the strongest, when it says more than the title
    verdict: TreeVerdict | None = None  # what a hanging tree did
    given_up: GivenUp | None = None
    ranks: tuple[RankStack, ...] = ()
    place: OwnCode | None = None
    crashed_in: Frame | None = None  # the innermost frame of native code
    memory_kill: OomKill | None = None
    victim: KernelKill | None = None
    resident_bytes: int | None = None  # of the whole process tree, in the last sample
    error: str = ""  # the last one in the output, when the cause is unknown
    first_exit: ProcessExit | None = None  # of the ranks
    ruled_out: tuple[RuledOut, ...] = ()  # when the cause is unknown
    node: str = ""  # with several machines: the one whose part failed


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What follows an attempt: a fallback, the same settings again, or the end."""

    action: Literal["fallback", "again", "stop"]
    reason: Reason
    fallback: Fallback | None = None
    changes: Mapping[str, object] = field(default_factory=dict)  # everything that differs from the plan as requested
    exit_code: int = 0  # of the run, when it stops


# Hundreds of patterns are tried on every log, and almost none matches. So a text first says quickly that a pattern
# cannot match: each match needs one of a few words, and none of them is there. Words are compared in lower case and
# without digits, so that the text can be reduced to one line of each shape.
_SHORTEST = 3
_MOST_WORDS = 24
_NUMBERS = re.compile(r"\d+")


@lru_cache(maxsize=4096)
def needles(pattern: str) -> tuple[str, ...]:
    """Words of which every match contains at least one, in lower case; empty if there are no such words."""
    try:
        # The parser is private to `re`. Without it there are no words, and every pattern is simply tried.
        tree = import_module("re._parser").parse(pattern, re.MULTILINE)
    except (ImportError, AttributeError, re.error):
        return ()
    words = _of_sequence(tree)
    return words if len(words) <= _MOST_WORDS else ()


def sketch(lines: Iterable[str]) -> str:
    """One line of each shape, in lower case; lines that differ only in their numbers have the same shape."""
    shapes: dict[str, None] = {}
    for line in lines:
        shapes.setdefault(_NUMBERS.sub("0", line))
    return "\n".join(shapes).lower()


def _of_sequence(items: Iterable[Any]) -> tuple[str, ...]:
    """The best words of a sequence: any of its parts will do, since all of them must match."""
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
    """The letters before a choice joined with those that begin each branch: "sig" and (segv|bus) give two words."""
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
    """Prefer the words whose shortest is longest; in a tie, the fewer words."""
    if not new or min(map(len, new)) < _SHORTEST:
        return old
    if not old or (min(map(len, new)), -len(new)) > (min(map(len, old)), -len(old)):
        return new
    return old
