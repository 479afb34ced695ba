"""Lines that look alarming and mean nothing. They are set aside before any hazard looks, and `explain` says so."""

import re
from dataclasses import dataclass

from holdfast.core.evidence import Evidence, Passage


@dataclass(frozen=True, slots=True)
class Harmless:
    """A warning that healthy runs print, and why it is no cause."""

    pattern: str
    why: str
    source: str


HARMLESS = (
    Harmless(
        r"pin_memory' argument is set as true but not supported on MPS",
        "the loader ignores pin_memory on MPS",
        "pytorch/pytorch#131858",
    ),
    Harmless(
        r"Some weights of \w+ were not initialized from the model checkpoint",
        "a new head is expected before fine-tuning",
        "huggingface/sentence-transformers#699",
    ),
    Harmless(
        r"resource_tracker: There appear to be \d+ leaked semaphore",
        "only the trace of a process that died hard; the cause stands before it",
        "pytorch/pytorch#143859",
    ),
)


def harmless_lines(evidence: Evidence) -> list[tuple[Passage, Harmless]]:
    """The harmless lines of a log, each with its explanation."""
    return [(passage, known) for known in HARMLESS for _, passage in evidence.log.search(known.pattern)]


def is_harmless(line: str) -> bool:
    """True for a line that means nothing."""
    return any(re.search(known.pattern, line) for known in HARMLESS)
