"""Lines that look alarming and mean nothing. They are set aside before any hazard looks, and `explain` says so."""

from dataclasses import dataclass, replace

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


def set_aside(evidence: Evidence) -> tuple[Evidence, tuple[tuple[Passage, Harmless], ...]]:
    """Take the harmless lines out of a log and its errors, and say which they were."""
    found = {passage.line: (passage, known) for known in HARMLESS for _, passage in evidence.log.search(known.pattern)}
    if not found:
        return evidence, ()
    cleaned = replace(evidence, log=evidence.log.without(found), errors=evidence.errors.without(found))
    return cleaned, tuple(found[line] for line in sorted(found))
