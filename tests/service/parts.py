"""PostgreSQL, Redis and RabbitMQ as real processes from the system's packages, on loopback ports, in their own folders.

PostgreSQL refuses to run as root: then it runs as the user that its package made. Each can be killed and started again.
A server that speaks S3 comes as a Python package, and keeps everything in memory.
"""

import contextlib
import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

_START_SECONDS = 240.0  # RabbitMQ on a busy machine


class Part:
    """One server, which can be killed and started again."""

    def __init__(
        self, name: str, url: str, command: list[str], folder: Path, is_up: Callable[[], bool], **popen: object
    ):
        self.name, self.url, self.command, self._folder = name, url, command, folder
        self._is_up, self._popen = is_up, popen
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> "Part":
        log = (self._folder / f"{self.name}.log").open("ab")
        self.process = subprocess.Popen(
            self.command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, **self._popen
        )
        log.close()
        deadline = time.monotonic() + _START_SECONDS
        while time.monotonic() < deadline:
            if self._is_up():
                return self
            if self.process.poll() is not None:
                break
            time.sleep(0.1)
        raise RuntimeError(f"{self.name} did not start: {(self._folder / f'{self.name}.log').read_text()[-2000:]}")

    def kill(self, number: int = signal.SIGKILL) -> None:
        """End it with all its processes."""
        if self.process:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, number)
            self.process.wait()

    def pause(self) -> None:
        """Freeze it with all its processes; PostgreSQL gives each of them a session of its own."""
        self._send_all(signal.SIGSTOP)

    def go_on(self) -> None:
        self._send_all(signal.SIGCONT)

    def _send_all(self, number: int) -> None:
        assert self.process
        root = psutil.Process(self.process.pid)
        for process in (root, *root.children(recursive=True)):
            process.send_signal(number)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def folder_for(user: str | None) -> Iterator[Path]:
    """A folder that another user may own; pytest's own are closed to them."""
    folder = Path(tempfile.mkdtemp(prefix="holdfast-part-"))
    folder.chmod(0o755)
    if user:
        shutil.chown(folder, user)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def postgres() -> Iterator[Part]:
    binaries = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"))
    found = binaries[-1].parent if binaries else None
    if found is None:
        pytest.skip("PostgreSQL is not installed (apt-get install postgresql)")
    user = "postgres" if os.getuid() == 0 else None
    if user and not any(entry.pw_name == user for entry in pwd.getpwall()):
        pytest.skip("PostgreSQL refuses root, and there is no user postgres")
    who = {"user": user, "group": user, "extra_groups": []} if user else {}
    with folder_for(user) as folder:
        port, data = free_port(), folder / "data"
        made = subprocess.run(
            [found / "initdb", "-D", data, "-U", "holdfast", "-A", "trust", "-E", "UTF8", "--no-sync"],
            capture_output=True,
            text=True,
            cwd=folder,
            **who,
        )
        assert made.returncode == 0, made.stderr
        options = ["-c", "listen_addresses=127.0.0.1", "-c", f"unix_socket_directories={folder}", "-c", "fsync=off"]
        command = [str(found / "postgres"), "-D", str(data), "-p", str(port), *options]
        ask = [str(found / "pg_isready"), "-q", "-h", "127.0.0.1", "-p", str(port)]
        url = f"postgresql://holdfast@127.0.0.1:{port}/postgres"
        part = Part("postgres", url, command, folder, lambda: subprocess.run(ask).returncode == 0, cwd=folder, **who)
        try:
            yield part.start()
        finally:
            part.kill()


def fresh_database(server: Part, name: str) -> str:
    """The URL of a new, empty database of a running PostgreSQL."""
    import psycopg

    with psycopg.connect(server.url, autocommit=True) as connection:
        connection.execute(f'create database "{name}"')
    return server.url.rpartition("/")[0] + f"/{name}"


@contextlib.contextmanager
def redis() -> Iterator[Part]:
    binary = shutil.which("redis-server")
    if binary is None:
        pytest.skip("Redis is not installed (apt-get install redis-server)")
    with folder_for(None) as folder:
        port = free_port()
        command = [binary, "--port", str(port), "--bind", "127.0.0.1", "--dir", str(folder), "--appendonly", "yes"]
        part = Part("redis", f"redis://127.0.0.1:{port}/0", command, folder, lambda: _pongs(port))
        try:
            yield part.start()
        finally:
            part.kill()


@contextlib.contextmanager
def rabbitmq() -> Iterator[Part]:
    script = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")
    if not script.exists():
        pytest.skip("RabbitMQ is not installed (apt-get install rabbitmq-server)")
    with folder_for(None) as folder:
        port, names_port = free_port(), free_port()
        environment = {
            **os.environ,
            "HOME": str(folder),
            "RABBITMQ_NODENAME": f"holdfast{port}@localhost",
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODE_PORT": str(port),
            "RABBITMQ_DIST_PORT": str(free_port()),
            "RABBITMQ_MNESIA_BASE": str(folder / "mnesia"),
            "RABBITMQ_LOG_BASE": str(folder / "log"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "plugins"),
            "RABBITMQ_PID_FILE": str(folder / "pid"),
            "RABBITMQ_CONF_ENV_FILE": str(folder / "none"),
            "ERL_EPMD_PORT": str(names_port),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
        }
        url = f"amqp://guest:guest@127.0.0.1:{port}//"
        part = Part("rabbitmq", url, [str(script)], folder, lambda: _greets(port), env=environment)
        try:
            yield part.start()
        finally:
            part.kill()
            subprocess.run(["epmd", "-port", str(names_port), "-kill"], env=environment, capture_output=True)


@contextlib.contextmanager
def s3() -> Iterator[Part]:
    """A server with one bucket; its URL is that of the bucket, and its variables lead there."""
    with folder_for(None) as folder:
        port = free_port()
        command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
        part = Part("s3", "s3://holdfast/here", command, folder, lambda: _answers(f"http://127.0.0.1:{port}/moto-api/"))
        try:
            part.start()
            make = urllib.request.Request(f"http://127.0.0.1:{port}/holdfast", method="PUT")
            urllib.request.urlopen(make, timeout=30).close()
            yield part
        finally:
            part.kill()


def s3_variables(server: Part) -> dict[str, str]:
    """How its users find it and log in."""
    port = server.command[-1]
    key = {"AWS_ACCESS_KEY_ID": "someone", "AWS_SECRET_ACCESS_KEY": "something", "AWS_DEFAULT_REGION": "us-east-1"}
    return {**key, "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}"}


def _answers(url: str) -> bool:
    try:
        urllib.request.urlopen(url, timeout=2).close()
    except OSError:
        return False
    return True


def _pongs(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1) as server:
            server.sendall(b"PING\r\n")
            return server.recv(16).startswith(b"+PONG")
    except OSError:
        return False


def _greets(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=2) as server:
            server.sendall(b"AMQP\x00\x00\x09\x01")
            return len(server.recv(8)) == 8
    except OSError:
        return False
