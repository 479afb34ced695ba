"""The folder of the service: database, keys, datasets and runs.

Paths in it are made from row numbers and our own names, never from what a user sent.
"""

import os
import secrets
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from holdfast.core.env import service_home
from holdfast.core.errors import MachineError


@dataclass(frozen=True, slots=True)
class Home:
    """The folder; without HOLDFAST_STORE, runs and datasets must be on storage that every worker sees."""

    folder: Path

    @property
    def database(self) -> Path:
        """The embedded database."""
        return self.folder / "service.sqlite3"

    @property
    def runs(self) -> Path:
        """One folder per run."""
        return self.folder / "runs"

    @property
    def datasets(self) -> Path:
        """One folder per upload."""
        return self.folder / "datasets"

    @property
    def incoming(self) -> Path:
        """Uploads in progress."""
        return self.folder / "incoming"

    @property
    def hub_cache(self) -> Path:
        """Hub models that anyone may fetch; every user's runs share them."""
        return self.folder / "models" / "public"

    def private_models(self, owner_id: int) -> Path:
        """Hub models that needed this user's token."""
        return self.folder / "models" / str(owner_id)

    @property
    def agents(self) -> Path:
        """The process and the log of each job's agent."""
        return self.folder / "agents"

    @property
    def static(self) -> Path:
        """Static files, collected when the service starts."""
        return self.folder / "static"

    def make(self) -> None:
        """Create the folders, readable by their owner only; a folder that others can read is closed to them."""
        for folder in (self.folder, self.runs, self.datasets, self.incoming, self.agents):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if self.folder.stat().st_mode & 0o077:
            try:
                self.folder.chmod(0o700)
            except PermissionError as error:
                raise MachineError(
                    f"other users of this machine can read {self.folder}, which holds passwords and data",
                    found=f"its mode is {stat.filemode(self.folder.stat().st_mode)}, and another user owns it",
                    try_next=(f"chmod 700 {self.folder}, as its owner", "--home FOLDER, a folder of your own"),
                ) from error

    def kept(self) -> int:
        """How many datasets and runs are here."""
        places = [place for place in (self.datasets, self.runs) if place.is_dir()]
        return sum(folder.name.isdigit() for place in places for folder in place.iterdir())

    def secret_key(self) -> str:
        """The key that protects sessions and secrets; created at the first start and never shown."""
        with _explained(self.folder):
            return self._secret_key()

    def _secret_key(self) -> str:
        self.make()
        path = self.folder / "secret.key"
        if not path.exists():
            file, draft = tempfile.mkstemp(prefix=".secret.key.", dir=self.folder)  # for its owner only
            with os.fdopen(file, "w", encoding="utf-8") as opened:
                opened.write(secrets.token_urlsafe(50))
            # Atomic, and never replacing another's: several processes may start at once.
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
    """The home folder of this process."""
    return Home(service_home())


@contextmanager
def _explained(folder: Path) -> Iterator[None]:
    """Explain why the home folder cannot be created or read."""
    try:
        yield
    except OSError as error:
        raise MachineError(
            f"the service cannot use {folder}",
            found=error.strerror or str(error),
            try_next=("--home FOLDER, a writable folder with free space",),
        ) from error
