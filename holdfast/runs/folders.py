"""Finds a new run a folder of its own, and takes the one that was asked for only where nothing else is in it."""

from pathlib import Path

from holdfast.core.errors import RequestError
from holdfast.core.runfolder import REQUEST

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


def take_folder(folder: Path, option: str) -> Path:
    """Make the folder that was asked for; refuse one that holds a run, or anything else, already."""
    around = next((place for place in (folder, *folder.absolute().parents) if place.exists()), folder)
    if around.exists() and not around.is_dir():
        raise RequestError(f"{option} {folder}: {around} is a file", try_next=("name a folder that is not there yet",))
    if folder.is_dir() and any(folder.iterdir()):
        known = (folder / REQUEST).is_file()
        raise RequestError(
            f"{option} {folder} is not empty",
            seen="a run is in it" if known else ", ".join(sorted(path.name for path in folder.iterdir())[:5]),
            try_next=(f"holdfast resume {folder}" if known else "name a folder that is not there yet",),
        )
    folder.mkdir(parents=True, exist_ok=True)
    return folder.absolute()
