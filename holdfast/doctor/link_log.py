"""The record of the links that `doctor --fix` made in an environment: what was linked where, and what was kept.

Reads and leaves: `holdfast-links.json` in the environment's top folder. Paths in it are relative to that folder and
never lead out of it. It is written before anything is touched, so that a run killed half-way can be finished or undone.
"""

import hashlib
import json
from dataclasses import dataclass, fields
from pathlib import Path, PurePosixPath

from holdfast.core.artifacts import write_artifact
from holdfast.core.errors import RequestError

LOG_NAME = "holdfast-links.json"


@dataclass(frozen=True, slots=True)
class LinkEntry:
    """One library that a link replaces."""

    owner: str  # "faiss-cpu 1.12.0"
    link: str  # where the link stands, relative to the environment
    target: str  # what the link says, relative to its own folder
    kept: str  # the original, relative to the environment
    sha256: str  # of the original


def read_log(environment: Path) -> tuple[LinkEntry, ...]:
    """The links on record; none when there is no record."""
    path = environment / LOG_NAME
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
        entries = tuple(
            LinkEntry(**{field.name: str(item[field.name]) for field in fields(LinkEntry)}) for item in raw["links"]
        )
    except FileNotFoundError:
        return ()
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RequestError(
            f"the record of links {path} cannot be read",
            seen=f"{type(error).__name__}: {error}",
            try_next=(f"look at {path}; the originals stand beside the links as *.holdfast-original",),
        ) from None
    for entry in entries:
        if not all(_stays_inside(environment, one) for one in (entry.link, entry.kept)):
            raise RequestError(
                f"the record of links {path} names a file outside the environment",
                seen=entry.link,
                try_next=(f"remove {path} if you did not make it",),
            )
    return entries


def write_log(environment: Path, entries: tuple[LinkEntry, ...]) -> None:
    """Write the record whole, or take it away when nothing is left in it."""
    if entries:
        write_artifact(environment, LOG_NAME, {"version": 1, "links": entries})
    else:
        (environment / LOG_NAME).unlink(missing_ok=True)


def digest(path: Path) -> str:
    """The SHA-256 of a file, read in pieces."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _stays_inside(environment: Path, relative: str) -> bool:
    path = PurePosixPath(relative)
    if not path.name or path.is_absolute() or ".." in path.parts:
        return False
    return (environment / relative).parent.resolve().is_relative_to(environment.resolve())
