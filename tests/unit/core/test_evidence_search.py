"""The words a pattern needs: never one too many, or a sign would be missed."""

import contextlib
import re
from bisect import bisect_right
from itertools import accumulate
from pathlib import Path

import pytest

import holdfast.hazards
from holdfast.core.evidence import Text, needles, sketch
from holdfast.hazards import Case, all_hazards


@pytest.mark.parametrize(
    ("pattern", "words"),
    [
        (r"OMP: Error #15\b", ("error",)),
        (r"(?i)Out of Memory: kill(?:ed)? process", ("memory:",)),
        (r"SIGSEGV|SIGBUS", ("sigsegv", "sigbus")),
        (r"WinError (?:126|127)\b", ("winerror",)),
        (r"colou?r matters", ("matters",)),
        (r"(?:abc|\d+)x", ()),
        (r"a.b", ()),
        (r"(?:undefined symbol)?", ()),
        (r"(?!not this)really that", ("really",)),
    ],
)
def test_pattern_lists_its_required_words(pattern, words):
    assert needles(pattern) == words


def test_invalid_pattern_has_no_required_words():
    assert needles("(") == ()


def test_lines_that_differ_in_numbers_are_one_shape():
    assert sketch(["step 1 loss 0.5", "step 22 loss 0.4", "Killed"]) == "step 0 loss 0.0\nkilled"


def test_word_in_a_later_line_of_a_shape_is_found():
    text = Text("log", [(1, "[WinError 2] x"), (2, "[WinError 126] x")])
    assert [passage.line for _, passage in text.search(r"WinError 126")] == [2]


def test_a_line_that_a_terminal_wrapped_is_still_found():
    text = Text("log", [(1, "mach-o file, but is an incompatible"), (2, "  architecture (have 'x86_64')")])
    assert [passage.line for _, passage in text.search(r"an incompatible architecture")] == [1]


def test_no_sign_of_any_hazard_is_missed():
    """Each place where a pattern really matches must stand in a text that the words let through."""
    cases = (case for hazard in all_hazards() for case in (*hazard.matches, *hazard.near_misses))
    logs = [case.log if isinstance(case, Case) else case for case in cases]
    texts = [Text("log", enumerate(log.split("\n"), start=1)) for log in logs]
    ends = list(accumulate(len(log) + 1 for log in logs))
    together = "\n".join(logs)
    checked = 0
    for pattern in _patterns():
        found = ((bisect_right(ends, match.start()), match.end()) for match in pattern.finditer(together))
        for at in {at for at, end in found if end < ends[at]}:  # those that stay inside one log
            checked += 1
            assert any(texts[at].search(pattern.pattern)), (pattern.pattern, logs[at])
    assert checked > 1000


def _patterns():
    """Every pattern in the hazards' files that needs a word, less the halves of those written over two lines."""
    for path in Path(holdfast.hazards.__path__[0]).glob("*.py"):
        for written in re.findall(r'r"((?:[^"\\]|\\.)+)"', path.read_text(encoding="utf-8")):
            if needles(written):
                with contextlib.suppress(re.error):
                    yield re.compile(written, re.MULTILINE)
