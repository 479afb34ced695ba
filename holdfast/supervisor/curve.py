"""Reads the memory of an attempt over time from samples.jsonl, and says how it went in one line."""

import json
from pathlib import Path

from holdfast.core.runfolder import SAMPLES
from holdfast.core.text import human_bytes

_ENOUGH_SAMPLES = 8
_RISE = 1.5


def resident_lines(attempt: Path) -> list[str]:
    """How much memory the tree held at the last look, and whether it grew to it step by step."""
    samples = [sample for sample in read_samples(attempt) if sample[1] > 0]
    if not samples:
        return []
    steps, sizes = [step for step, _ in samples], [size for _, size in samples]
    line = f"resident {human_bytes(sizes[-1])} at the last look, {human_bytes(max(sizes))} at most"
    per_step = _growth_per_step(samples)
    if per_step and sizes[-1] > _RISE * sizes[len(sizes) // 2]:
        line += f", growing by {human_bytes(per_step)} a step since step {steps[len(steps) // 2]}"
    return [line]


def last_resident_bytes(attempt: Path) -> int | None:
    """What the tree held when it was last looked at alive."""
    sizes = [size for _, size in read_samples(attempt) if size > 0]
    return sizes[-1] if sizes else None


def read_samples(attempt: Path) -> list[tuple[int, int]]:
    """Step and resident bytes of each sample, oldest first."""
    try:
        lines = (attempt / SAMPLES).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
    found = []
    for line in lines:
        try:
            sample = json.loads(line)
            found.append((int(sample.get("step") or 0), int(sample.get("resident_bytes") or 0)))
        except (ValueError, AttributeError, TypeError):  # the half line of a writer that was killed
            continue
    return found


def _growth_per_step(samples: list[tuple[int, int]]) -> float:
    """Bytes a step over the later half; 0 where it also falls, or where there is too little to say."""
    later = samples[len(samples) // 2 :]
    if len(later) < _ENOUGH_SAMPLES // 2 or later[-1][0] <= later[0][0]:
        return 0.0
    highest = 0
    for _, size in later:
        if size < 0.95 * highest:
            return 0.0
        highest = max(highest, size)
    return (later[-1][1] - later[0][1]) / (later[-1][0] - later[0][0])
