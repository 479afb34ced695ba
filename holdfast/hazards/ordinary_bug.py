"""Finds the user's own line behind an exception that no hazard explains: where it is, and what was wrong there."""

import re
from difflib import get_close_matches

from holdfast.core.evidence import BugKind, Evidence, OrdinaryBug, Raised
from holdfast.core.observations import CodePlace
from holdfast.hazards.tracebacks import own_frame, raised_by

# Launchers and pools repeat the exception of a child; it was printed before.
_REPEATED_NAMES = (
    "ChildFailedError CalledProcessError ProcessRaisedException ProcessExitedException RemoteTraceback SystemExit "
    "RemoteError ExceptionGroup StopIteration"
)
_REPEATED = frozenset(_REPEATED_NAMES.split())
_NUMBER = r"-?\d+(?:\.\d+)?"
# The first pattern that matches "Type: message" decides; its group is the wrong value.
_PATTERNS: tuple[tuple[BugKind, str], ...] = (
    ("interrupted", r"KeyboardInterrupt"),
    ("missing_key", r"KeyError: (?P<value>.{1,80})$"),
    ("none_value", r"(?:AttributeError|TypeError): .*'?NoneType'?.*?(?:attribute '(?P<value>\w+)'|$)"),
    ("import", r"(?:ImportError|ModuleNotFoundError): .*?'(?P<value>[\w.]+)'"),
    ("missing_attribute", r"AttributeError: .*attribute '(?P<value>\w+)'"),
    ("unassigned_name", r"UnboundLocalError: .*variable '?(?P<value>\w+)'?"),
    ("undefined_name", r"NameError: (?:global )?name '(?P<value>\w+)'"),
    ("index_range", rf"IndexError: (?:.*?index (?P<value>{_NUMBER}))?"),
    ("unpack", r"(?:ValueError|TypeError): .*unpack.*?(?:expected (?P<value>\d+))?"),
    (
        "device",
        r"\w+: .*(?:same device|different devices?|is on (?:cpu|cuda|mps)|torch\.cuda\.\w+Tensor\) and \w+ type)",
    ),
    (
        "shape",
        r"\w+: .*(?:shape|size|dimension|batch_size|cannot be multiplied|must match).*?(?P<value>\[[\d, ]+\]|\(\d[\d, x]*\))?",
    ),
    (
        "conversion",
        r"(?:ValueError|TypeError): (?:could not convert|invalid literal|cannot convert).*?(?P<value>'[^']*')?$",
    ),
    ("wrong_arguments", r"TypeError: .*(?:argument|positional).*?(?P<value>'\w+')?"),
    ("wrong_type", r"TypeError: .*?(?P<value>'[\w.]+')?"),
    ("missing_file", r"(?:FileNotFoundError|NotADirectoryError|IsADirectoryError): .*?(?P<value>'[^']+')?$"),
    ("assertion", r"AssertionError"),
    ("division", r"ZeroDivisionError"),
    ("recursion", r"RecursionError"),
    ("syntax", r"(?:SyntaxError|IndentationError|TabError)"),
)
_KINDS = tuple((kind, re.compile(pattern)) for kind, pattern in _PATTERNS)
_SYNTAX_PLACE = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+)\s*$')


def find_bug(evidence: Evidence) -> OrdinaryBug | None:
    """The first exception with a line of the user's own code; without such a line, the first exception."""
    candidates = [raised for raised in evidence.exceptions if raised.kind not in _REPEATED]
    candidates = [raised for raised in candidates if _classify(raised)[0] != "other" or raised.frames]
    with_place = (raised for raised in candidates if own_frame(raised) or _syntax_place(evidence, raised))
    raised = next(with_place, candidates[0] if candidates else None)
    if raised is None:
        return None
    kind, value = _classify(raised)
    return OrdinaryBug(
        kind=kind,
        error=raised.kind,
        message=raised.message,
        line=raised.line,
        place=_place(evidence, raised),
        raised_in=raised_by(raised) or "",
        value=value,
        near=_similar_name(evidence, raised, value) if kind in _NAMED else "",
    )


_NAMED: tuple[BugKind, ...] = ("missing_key", "missing_attribute", "undefined_name", "import")


def _classify(raised: Raised) -> tuple[BugKind, str]:
    text = f"{raised.kind}: {raised.message}" if raised.message else raised.kind
    for kind, pattern in _KINDS:
        if match := pattern.match(text):
            return kind, (match.groupdict().get("value") or "").strip()
    return "other", ""


def _place(evidence: Evidence, raised: Raised) -> CodePlace | None:
    if own := own_frame(raised):
        frame, source = own
        return CodePlace(file=frame.module, line=frame.at, function=frame.function, source=source)
    return _syntax_place(evidence, raised)


def _syntax_place(evidence: Evidence, raised: Raised) -> CodePlace | None:
    """A SyntaxError has no frame; its file and line are printed above it."""
    if raised.kind not in ("SyntaxError", "IndentationError", "TabError"):
        return None
    above = [passage for passage in evidence.log if raised.line - 6 <= passage.line < raised.line]
    for passage in reversed(above):
        if match := _SYNTAX_PLACE.search(passage.text):
            source = next((one.text.strip() for one in above if one.line == passage.line + 1), "")
            return CodePlace(file=match["file"], line=int(match["line"]), source=source)
    return None


def _similar_name(evidence: Evidence, raised: Raised, value: str) -> str:
    """A name in the log that differs from the wrong one only a little, as a slip of the pen does."""
    wanted = value.strip("'\"")
    if not 3 <= len(wanted) <= 40:
        return ""
    words = set(re.findall(r"\w+", f"{evidence.log.joined[-20_000:]} {raised.message}")) - {wanted}
    return next(iter(get_close_matches(wanted, sorted(words), n=1, cutoff=0.82)), "")
