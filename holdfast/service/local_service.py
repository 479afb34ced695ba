"""`holdfast serve`: prepares the home folder, then keeps a web server and a dispatcher running until Ctrl-C.

Both are its children and die with it. Agents and their runs do not; the next start finds them again.
"""

import contextlib
import fcntl
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import psutil
from django.conf import settings
from django.core.management import call_command
from django.db import DatabaseError, connection
from django.db.migrations.executor import MigrationExecutor

from holdfast.core.artifacts import read_artifact, write_artifact
from holdfast.core.errors import MachineError, RequestError
from holdfast.core.text import plural
from holdfast.service.child_process import command_of, ending_with_us
from holdfast.service.first_login import LINK_HOURS, first_user, has_password_user, make_link
from holdfast.service.home import Home, this_home
from holdfast.service.object_store import require_store

LOOPBACK = ("127.0.0.1", "::1", "localhost")
_STILL_SECONDS, _START_DEATHS = (
    60.0,
    3,
)  # before giving up on a web server that does not come up: idle for so long, or dead so often
_TURN_SECONDS = 0.3
_STOP_SECONDS = 100.0  # for the runs of the dispatcher to save and go back into the queue
_AGAIN_SECONDS = (0.5, 1.0, 2.0, 5.0, 10.0)  # before a dead child is restarted
_LOG_BYTES = 20 * 1024**2
_KEPT_LOGS = 2  # rotated ones: web.log.1, and web.log.2 before it

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """Where the service listens."""

    host: str
    port: int

    @property
    def url(self) -> str:
        """The URL for a browser on this machine."""
        shown = {"0.0.0.0": "127.0.0.1", "::": "[::1]", "::1": "[::1]"}.get(self.host, self.host)
        return f"http://{shown}:{self.port}"


def serve(address: Address, *, user: str, say: Say, open_page: Callable[[str], None] | None) -> None:
    """Serve until Ctrl-C or SIGTERM."""
    home = this_home()
    lock = _only_one(home)
    try:
        _require_free(address)
        require_store(say)
        _migrate(home)
        if address.host not in LOOPBACK and not has_password_user():
            raise RequestError(
                f"others could reach this service on {address.host}, and no user has a password yet",
                try_next=("run `holdfast serve`, open its link and choose a password",
                          "python -m holdfast.service createsuperuser"),
            )  # fmt: skip
        call_command("collectstatic", interactive=False, verbosity=0)
        call_command("clearsessions")  # expired sessions would stay forever
        owner = first_user(user)
        path = "/" if has_password_user() else make_link(owner)
        write_artifact(home.folder, "serve.json", {"url": address.url, "pid": os.getpid()})
        _Service(address, home, say).run(lambda: _welcome(address, path, home, say, open_page))
    finally:
        os.close(lock)


def _welcome(address: Address, path: str, home: Home, say: Say, open_page: Callable[[str], None] | None) -> None:
    say(f"[ok] Holdfast is running at {address.url}")
    if path != "/":
        say(f"     first login: {settings.PUBLIC_URL or address.url}{path}")
        say(f"     The link works once, within {LINK_HOURS} hours. Until a password is set,")
        say("     each start prints a new link.")
    runs = f"{plural(settings.RUNS_AT_ONCE, 'run')} at a time" if settings.RUNS_AT_ONCE else "runs are left to workers"
    say(f"     Data: {home.folder}; {runs}; Ctrl-C to stop")
    if open_page:
        open_page(address.url + path)


class _Service:
    """The child processes of `serve`."""

    def __init__(self, address: Address, home: Home, say: Say):
        self._home, self._say, self._asked, self._address = home, say, 0, address
        log_level = ("--log-level", "warning", "--no-access-log", "--no-server-header")
        web = ["uvicorn", "holdfast.service.asgi:application", "--host", address.host, "--port", str(address.port)]
        web += ["--http", "holdfast.service.http_protocol:DeadlineProtocol"]
        if not settings.TLS and "FORWARDED_ALLOW_IPS" not in os.environ:
            web.append("--no-proxy-headers")  # without a proxy in front, such headers are forged
        self._commands = {
            "web": [sys.executable, "-m", *web, *log_level, "--timeout-graceful-shutdown", "3"],
            "dispatcher": command_of("dispatcher"),
        }
        self._children: dict[str, subprocess.Popen[bytes]] = {}
        self._deaths: dict[str, int] = {}
        self._again_at: dict[str, float] = {}
        self._done: tuple[int, float, int] | None = None  # by the web server before it responds
        self._done_at = time.monotonic()

    def run(self, on_up: Callable[[], None]) -> None:
        """Keep both children running until a signal."""
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, self._ask)
        is_up = False
        try:
            self._start("web")
            self._start("dispatcher")
            while not self._asked:
                self._look()
                if not is_up and self._answers():
                    is_up = True
                    on_up()
                elif not is_up and self._has_given_up(time.monotonic()):
                    raise MachineError(
                        "the web server did not start",
                        found=_last_line(self._log("web")),
                        try_next=(f"read {self._log('web')}",),
                    )
                time.sleep(_TURN_SECONDS)
        finally:
            self._stop()

    def _has_given_up(self, now: float) -> bool:
        """Whether the web server will not come up: it keeps dying, or it runs but does nothing."""
        pid, log = self._children["web"].pid, self._home.folder / "web.log"
        with contextlib.suppress(psutil.Error):
            spent = psutil.Process(pid).cpu_times()
            done = (pid, spent.user + spent.system, log.stat().st_size)
            if done != self._done:
                self._done, self._done_at = done, now
        return self._deaths.get("web", 0) >= _START_DEATHS or now - self._done_at > _STILL_SECONDS

    def _start(self, name: str) -> None:
        log = open_log(self._log(name))
        try:
            self._children[name] = subprocess.Popen(
                ending_with_us(self._commands[name]),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                process_group=0,  # Ctrl-C is for this process
                # Django spools uploads with `tempfile`: on the disk of the home folder, since /tmp may be memory.
                env={**os.environ, "TMPDIR": str(self._home.incoming)} if name == "web" else None,
            )
        finally:
            os.close(log)

    def _look(self) -> None:
        """Rotate the logs; restart a dead child, after a delay that grows while it keeps dying."""
        now = time.monotonic()
        for name, child in list(self._children.items()):
            rotate_log(self._log(name))
            code = child.poll()
            if code is None:
                continue
            if name not in self._again_at:
                deaths = self._deaths[name] = self._deaths.get(name, 0) + 1
                wait = _AGAIN_SECONDS[min(deaths, len(_AGAIN_SECONDS)) - 1]
                self._again_at[name] = now + wait
                self._say(f"[!]  the {name} ended with {code}; restarting it (see {self._log(name)})")
            elif now >= self._again_at[name]:
                del self._again_at[name]
                self._start(name)

    def _log(self, name: str) -> Path:
        return self._home.folder / f"{name}.log"

    def _answers(self) -> bool:
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self._address.host, self._address.host)
        try:
            socket.create_connection((host, self._address.port), timeout=1.0).close()
        except OSError:
            return False
        return True

    def _stop(self) -> None:
        """Save the runs, which wait for the next start; then stop the web server."""
        signal.signal(signal.SIGINT, self._ask)
        dispatcher, web = self._children.get("dispatcher"), self._children.get("web")
        if dispatcher and dispatcher.poll() is None:
            self._say("     saving the runs; they continue at the next start (Ctrl-C again: stop now)")
            dispatcher.terminate()
            deadline, asked = time.monotonic() + _STOP_SECONDS, self._asked
            while dispatcher.poll() is None and time.monotonic() < deadline and self._asked == asked:
                time.sleep(0.1)
        for child in (web, dispatcher):
            if child and child.poll() is None:
                child.terminate()
                try:
                    child.wait(5)
                except subprocess.TimeoutExpired:
                    child.kill()
        (self._home.folder / "serve.json").unlink(missing_ok=True)

    def _ask(self, *_: object) -> None:
        self._asked += 1


def _only_one(home: Home) -> int:
    """Lock the home folder, or report where the other service runs."""
    path = home.folder / "serve.lock"
    try:
        home.make()
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise MachineError(
            f"{home.folder} cannot be written",
            found=error.strerror or str(error),
            try_next=("holdfast serve --home FOLDER, with a folder that you can write to",),
            slug="permission-denied",
        ) from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(lock)
        other = read_artifact(home.folder / "serve.json")
        raise RequestError(
            f"another service uses {home.folder}",
            found=f"process {other.get('pid')} at {other.get('url')}" if other else "its lock is taken",
            try_next=(f"open {other.get('url', 'its page')}", "holdfast serve --home FOLDER, for another service"),
        ) from None
    return lock


def _require_free(address: Address) -> None:
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address.host, address.port))
        except OSError as error:
            raise MachineError(
                f"cannot listen on {address.host}:{address.port}",
                found=error.strerror or str(error),
                try_next=(f"holdfast serve --port {address.port + 1}",),
            ) from error


def _migrate(home: Home) -> None:
    """Migrate the database; refuse one of a newer version, and an empty one for a home folder with data."""
    try:
        executor = MigrationExecutor(connection)
        if not executor.loader.applied_migrations and (kept := home.kept()):
            raise RequestError(
                f"{home.folder} belongs to another database",
                found=f"it holds {plural(kept, 'folder')} of datasets and runs; the database has no tables",
                try_next=("set HOLDFAST_DATABASE_URL as before", "holdfast serve --home FOLDER, for a new service"),
            )
        unknown = [key for key in executor.loader.applied_migrations if key not in executor.loader.disk_migrations]
        if unknown:
            app, name = sorted(unknown)[-1]
            raise MachineError(
                "the database belongs to a newer version of Holdfast",
                found=f"it has the migration {app} {name}, which this version lacks",
                try_next=("pip install --upgrade holdfast", "holdfast serve --home FOLDER, for a new service"),
            )
        call_command("migrate", interactive=False, verbosity=0)
    except DatabaseError as error:
        shown = settings.DATABASES["default"]
        raise MachineError(
            "the database does not work",
            found=str(error).strip().splitlines()[0],
            try_next=(f"check {shown.get('HOST') or ''} {shown['NAME']}".replace("  ", " "),),
        ) from error


def _last_line(path: Path) -> str:
    lines = path.read_text(errors="replace").strip().splitlines() if path.exists() else []
    return lines[-1][:300] if lines else "it printed nothing"


def open_log(path: Path) -> int:
    """A descriptor for a child's output; each write is appended, also after a rotation."""
    rotate_log(path)
    return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)


def rotate_log(path: Path, most_bytes: int = _LOG_BYTES) -> bool:
    """Rotate a full log, also while a process writes to it: it is copied and truncated, so the file stays the same.

    A line written between the two is lost.
    """
    try:
        if path.stat().st_size <= most_bytes:
            return False
        for number in range(_KEPT_LOGS, 1, -1):
            with contextlib.suppress(FileNotFoundError):
                _rotated(path, number - 1).replace(_rotated(path, number))
        shutil.copyfile(path, _rotated(path, 1))
        _rotated(path, 1).chmod(0o600)
        os.truncate(path, 0)
    except OSError:  # no room for a copy: a long log is better than none
        return False
    return True


def _rotated(path: Path, number: int) -> Path:
    return path.with_name(f"{path.name}.{number}")
