"""Finds where in a Python traceback an error was raised, for hazards whose sign is the place, not the message."""

from holdfast.core.evidence import Evidence, Frame, Passage


def frames_before(evidence: Evidence, line: int) -> list[Frame]:
    """The frames before a line of the log, in log order."""
    frames = (frame for stack in evidence.stacks for frame in stack.frames)
    return sorted((frame for frame in frames if frame.line < line), key=lambda frame: frame.line)


def error_raised_in(evidence: Evidence, kind: str) -> tuple[Passage, list[Frame]] | None:
    """The first exception of that kind with the frames that led to it; the last frame raised it."""
    error = next((passage for passage in evidence.errors if passage.text.startswith(kind)), None)
    return (error, frames_before(evidence, error.line)) if error else None


def is_in_torch_loader(frame: Frame) -> bool:
    """True for a frame in torch's data loading code."""
    return "torch/utils/data" in frame.module.replace("\\", "/")
