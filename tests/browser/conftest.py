"""A headless browser, and the whole service in separate processes."""

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

_ARGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)
_START_SECONDS, _STOP_SECONDS = 600, 120  # on a crowded machine torch alone takes minutes to import


@dataclass(frozen=True, slots=True)
class Service:
    """A service that runs."""

    url: str
    link: str  # lets its first user in, once
    home: Path


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A home of the service's own for one test."""
    monkeypatch.setenv("HOLDFAST_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture(scope="session")
def browser():
    """Chromium of the system, without a window."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    found = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if not found:
        pytest.skip("no chromium is installed")
    with playwright.sync_playwright() as started:
        # Playwright's loop runs in this thread, which Django takes for asynchronous code.
        os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"] = "1"
        chromium = started.chromium.launch(executable_path=found, args=list(_ARGS))
        yield chromium
        chromium.close()


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    """`holdfast serve` with a home, a cache and a tiny model of its own."""
    pytest.importorskip("torch", reason="torch is not installed")
    place = tmp_path_factory.mktemp("service")
    home = place / "home"
    variables = {
        "XDG_CACHE_HOME": str(place / "cache"),
        "XDG_STATE_HOME": str(place / "state"),
        "HOLDFAST_HOME": str(home),
        "PYTHONUNBUFFERED": "1",
    }
    environment = {**os.environ, **variables}
    environment.pop("DJANGO_SETTINGS_MODULE", None)
    _keep_tiny_model(environment)
    port = _free_port()
    command = [sys.executable, "-m", "holdfast", "serve", "--no-browser", "--port", str(port)]
    log = place / "serve.log"
    with log.open("wb") as out:
        process = subprocess.Popen(command, env=environment, stdout=out, stderr=subprocess.STDOUT)
    try:
        yield Service(f"http://127.0.0.1:{port}", _wait_for_link(process, log), home)
    finally:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _keep_tiny_model(environment):
    code = "from holdfast.models.store import keep; from tests.tiny import tiny_bert; keep('tiny', 'a test', tiny_bert)"
    subprocess.run([sys.executable, "-c", code], env=environment, check=True, timeout=_START_SECONDS)


def _wait_for_link(process, log):
    until = time.monotonic() + _START_SECONDS
    while time.monotonic() < until:
        if found := re.search(r"http://\S+/once/\S+", log.read_text()):
            return found.group()
        if process.poll() is not None:
            break
        time.sleep(0.2)
    raise AssertionError(f"the service did not start:\n{log.read_text()}")


def _free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]
