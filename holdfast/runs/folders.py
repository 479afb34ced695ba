"""Finds a new run a folder of its own."""

from pathlib import Path

from holdfast.core.errors import RequestError

RUNS = "runs"  # where run folders go when none is named


def make_free_folder(name: str) -> Path:
    """Make the first folder NAME-1, NAME-2, ... that nobody has."""
    for number in range(1, 100_000):
        folder = Path(RUNS).absolute() / f"{name}-{number}"
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            continue
        return folder
    raise RequestError(f"{RUNS}/ is full of runs named {name}", try_next=("name a folder for this one",))
