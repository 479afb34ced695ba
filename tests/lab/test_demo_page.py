"""Serves the page of a tiny model and asks it as the browser does. Skipped where gradio is not installed."""

import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

from tests.tiny import tiny_attempt, tiny_bert, tiny_prepared

pytestmark = [pytest.mark.lab, pytest.mark.full]
pytest.importorskip("gradio")


@pytest.fixture
def run(tmp_path) -> Path:
    attempt = tiny_attempt(tmp_path / "run", tiny_bert(tmp_path / "m"), tiny_prepared(tmp_path / "d"), epochs=1)
    subprocess.run(
        [sys.executable, "-m", "holdfast.engine", str(attempt)], check=True, capture_output=True, timeout=600
    )
    return tmp_path / "run"


def test_page_responds_locally_and_ends_with_ctrl_c(run, tmp_path):
    log = tmp_path / "log"
    command = [sys.executable, "-c", "from holdfast.cli import main; main()", "demo", str(run)]
    with log.open("wb") as file:
        process = subprocess.Popen(command, stdout=file, stderr=file, start_new_session=True)
    try:
        deadline = time.monotonic() + 600
        while not (found := re.search(r"http://127\.0\.0\.1:\d+", log.read_text())):
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline
            time.sleep(0.2)
        with urllib.request.urlopen(found[0], timeout=60) as answer:
            page = answer.read().decode()
        assert "gradio" in page
        assert "fonts.googleapis" not in page
    finally:
        os.killpg(process.pid, signal.SIGINT)
        process.wait(60)
    assert process.returncode == 130
