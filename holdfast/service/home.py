"""The service's own folder: database, keys, datasets and runs, each in its place.

A row of the database points into it; what a path is made of never comes from a user.
"""

import os
import secrets
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from holdfast.core.env import service_home
from holdfast.core.errors import MachineError


@dataclass(frozen=True, slots=True)
class Home:
    """Where the service keeps things; runs and datasets must be on storage that every worker sees."""

    folder: Path

    @property
    def database(self) -> Path:
        """The embedded database."""
        return self.folder / "service.sqlite3"

    @property
    def runs(self) -> Path:
        """One folder for each run."""
        return self.folder / "runs"

    @property
    def datasets(self) -> Path:
        """One folder for each upload."""
        return self.folder / "datasets"

    @property
    def incoming(self) -> Path:
        """Uploads that are still on their way."""
        return self.folder / "incoming"

    @property
    def agents(self) -> Path:
        """Who keeps which job, and what they said."""
        return self.folder / "agents"

    @property
    def static(self) -> Path:
        """What the pages load, gathered when the service starts."""
        return self.folder / "static"

    def make(self) -> None:
        """Make the folders, readable by their owner only."""
        for folder in (self.folder, self.runs, self.datasets, self.incoming, self.agents):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    def kept(self) -> int:
        """How many datasets and runs lie here."""
        places = [place for place in (self.datasets, self.runs) if place.is_dir()]
        return sum(folder.name.isdigit() for place in places for folder in place.iterdir())

    def secret_key(self) -> str:
        """The key behind sessions and kept secrets; made at the first start and never shown."""
        with _words(self.folder):
            return self._secret_key()

    def _secret_key(self) -> str:
        self.make()
        path = self.folder / "secret.key"
        if not path.exists():
            file, draft = tempfile.mkstemp(prefix=".secret.key.", dir=self.folder)  # for its owner only
            with os.fdopen(file, "w", encoding="utf-8") as opened:
                opened.write(secrets.token_urlsafe(50))
            # Whole or not at all, and never over another's: several processes may start at once.
            try:
                os.link(draft, path)
            except FileExistsError:
                pass
            except OSError:  # a file system without links
                if not path.exists():
                    Path(draft).replace(path)
            Path(draft).unlink(missing_ok=True)
        return path.read_text(encoding="utf-8").strip()


def this_home() -> Home:
    """The folder this process serves from."""
    return Home(service_home())


@contextmanager
def _words(folder: Path) -> Iterator[None]:
    """Say it in words where the home cannot be made or read."""
    try:
        yield
    except OSError as error:
        raise MachineError(
            f"the service cannot keep its things in {folder}",
            seen=error.strerror or str(error),
            try_next=("--home FOLDER, at a place with room that you may write to",),
        ) from error
