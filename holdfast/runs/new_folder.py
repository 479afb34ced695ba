"""Makes the folder of a new run: the requested one if it is empty, otherwise a free one under runs/."""

import contextlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from holdfast.core.disk_space import cannot_write
from holdfast.core.errors import RequestError, set_to
from holdfast.core.runfolder import REQUEST

RUNS = "runs"  # where run folders are created unless one is named


@contextmanager
def new_folder(asked: Path | None, name: str, option: str) -> Iterator[Path]:
    """Make the folder of a new run: the requested one, or one called NAME-1, NAME-2, ... under runs/.

    If it cannot be written, the error explains it and no empty folder is left behind.
    """
    place = (asked or Path(RUNS)).absolute()
    made = [folder for folder in (place, *place.parents) if not os.path.exists(folder)]  # noqa: PTH110  (never raises)
    try:
        run = take_folder(asked, option) if asked else make_free_folder(name)
        made = made if asked else [run, *made]
        yield run
    except OSError as error:
        for folder in made:
            with contextlib.suppress(OSError):
                folder.rmdir()
        raise cannot_write(
            place, error, set_to(option.lstrip("-"), placeholder="FOLDER", note="a writable folder with free space")
        ) from error


def make_free_folder(name: str) -> Path:
    """Make the first folder NAME-1, NAME-2, ... that does not exist yet."""
    for number in range(1, 100_000):
        folder = Path(RUNS).absolute() / f"{name}-{number}"
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            continue
        return folder
    raise RequestError(f"{RUNS}/ is full of runs named {name}", try_next=("choose a folder for this run",))


def take_folder(folder: Path, option: str) -> Path:
    """Make the requested folder; refuse one that already holds a run or anything else."""
    around = next((place for place in (folder, *folder.absolute().parents) if place.exists()), folder)
    if around.exists() and not around.is_dir():
        raise RequestError(
            f"{option} {folder}: {around} is a file", try_next=("choose a folder that does not exist yet",)
        )
    if folder.is_dir() and any(folder.iterdir()):
        known = (folder / REQUEST).is_file()
        raise RequestError(
            f"{option} {folder} is not empty",
            found="it contains a run" if known else ", ".join(sorted(path.name for path in folder.iterdir())[:5]),
            try_next=(f"holdfast resume {folder}" if known else "choose a folder that does not exist yet",),
        )
    folder.mkdir(parents=True, exist_ok=True)
    return folder.absolute()
