"""When each attempt began and ended, and how, as far as its folder tells."""

from collections.abc import Iterator
from dataclasses import dataclass

from holdfast.core.text import human_bytes, human_seconds
from holdfast.runs.story import AttemptStory, Story

_STOPPED = 143
_HOW = {
    "finished": ("finished", "it finished"),
    "died": ("failed", "it died"),
    "hung": ("failed", "it hung and was ended"),
    "stopped": ("stopped", "it was asked to stop, and saved"),
    "interrupted": ("stopped", "its supervisor was killed, and it ended with it"),
}


@dataclass(frozen=True, slots=True)
class Span:
    """The time of one attempt, in seconds since 1970."""

    start: float
    end: float


def span_of(attempt: AttemptStory) -> Span | None:
    """From its first sign to its last."""
    started, seconds = attempt.outcome.get("started"), attempt.outcome.get("seconds")
    if isinstance(started, int | float) and isinstance(seconds, int | float) and started > 0:
        return Span(float(started), float(started) + float(seconds))
    times = [
        float(line["time"]) for line in (*attempt.events, *attempt.samples) if isinstance(line.get("time"), int | float)
    ]
    files = [path.stat().st_mtime for name in ("child.json", "output.log") if (path := attempt.folder / name).is_file()]
    found = times + (files if not times else [])
    return Span(min(found), max(found)) if found else None


def lasted_seconds(story: Story) -> float:
    """How long all attempts took together; or what the result says."""
    if isinstance(story.result.get("seconds"), int | float):
        return float(story.result["seconds"])
    return sum(span.end - span.start for attempt in story.attempts if (span := span_of(attempt)))


def outcome_of(attempt: AttemptStory) -> tuple[str, str]:
    """How an attempt ended: a word ("finished", "stopped", "failed", "open") and a sentence without its full stop."""
    known = attempt.outcome
    if known.get("outcome"):
        how = _HOW.get(str(known["outcome"]), ("failed", "it failed"))
        said = known.get("sentence")
        if how[0] == "failed":
            return how[0], str(said or attempt.diagnosis.get("title") or how[1]).rstrip(".")
        return how[0], f"{how[1]}, but {said}" if said and how[0] == "finished" else how[1]
    if attempt.named("finished"):
        return "finished", "it finished"
    if attempt.named("stopped"):
        return "stopped", "it was asked to stop, and saved"
    title = attempt.diagnosis.get("title")
    if title:
        sentence = attempt.evidence.get("sentence") or attempt.diagnosis.get("sentence") or title
        return "failed", str(sentence).rstrip(".")
    for event in reversed(attempt.named("bad numbers", "failed", "died")):
        return "failed", str(event.get("reason") or event.get("sentence") or "it failed").rstrip(".")
    code = attempt.evidence.get("exit_code", attempt.evidence.get("exit"))
    if code == 0:
        return "finished", "it ended with code 0"
    if code == _STOPPED:
        return "stopped", "it was asked to stop"
    if code not in (None, ""):
        return "failed", f"it ended with {code}"
    return "open", "it is still running" if attempt.is_live else "it left no word about its end"


def reached_step(attempt: AttemptStory) -> int | None:
    """The last step it did, counted from 1."""
    steps = [event["step"] for event in attempt.named("step", "log") if isinstance(event.get("step"), int)]
    return max(steps) + (1 if attempt.named("step") else 0) if steps else None


def progress_words(attempt: AttemptStory) -> Iterator[str]:
    """How far it came, when a fault was noticed, and how much memory it took."""
    for event in attempt.named("resumed")[:1]:
        yield f"went on from step {event.get('step')}"
    reached = reached_step(attempt)
    if reached:
        yield f"reached step {reached:,}"
    noticed = attempt.outcome.get("noticed_after_seconds")
    if isinstance(noticed, int | float):
        yield f"noticed after {human_seconds(noticed)}"
    peaks = [sample["resident_bytes"] for sample in attempt.samples if isinstance(sample.get("resident_bytes"), int)]
    if peaks:
        yield f"at most {human_bytes(max(peaks))} of memory"
