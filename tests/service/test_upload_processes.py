"""Uploads with real processes: the survey within its limits, a real server, a loaded model."""

import gzip
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from holdfast.core.artifacts import read_artifact, write_artifact
from holdfast.core.errors import HoldfastError
from holdfast.core.records import PredictOptions
from holdfast.service import survey_watch
from holdfast.service.survey_watch import PLACE
from tests.service.surveyed import ROWS

pytestmark = pytest.mark.service

LIMITS = {"memory_bytes": 2 * 10**9, "seconds": 60, "unpacked_bytes": 20_000_000, "rows": 50_000}


def survey(tmp_path, name, content, **limits):
    """Survey a file as the service does; gives the result and how long it took."""
    folder = tmp_path / "7"
    (folder / PLACE).mkdir(parents=True)
    path = folder / name
    path.write_bytes(content)
    write_artifact(folder / PLACE, "k.job.json", {"path": str(path), "choices": {}, "limits": {**LIMITS, **limits}})
    began = time.monotonic()
    assert survey_watch.main(folder, "k") == 0
    assert not (folder / PLACE / "work").exists()
    return read_artifact(folder / PLACE / "k.json"), time.monotonic() - began


def test_file_named_like_a_module_is_never_executed(tmp_path):
    for name in ("json.py", "polars.py"):
        body = "import pathlib; pathlib.Path('/tmp/holdfast-was-run').touch()  # text,label\n"
        found, _ = survey(tmp_path / name, name, (body + ROWS).encode())
        assert not Path("/tmp/holdfast-was-run").exists()
        assert "problem" in found


def test_zip_bomb_is_stopped_at_the_limit(tmp_path):
    found, _ = survey(tmp_path, "bomb.csv.gz", gzip.compress(b"text,label\n" + b"x" * 60_000_000))
    assert found["state"] == "refused"
    assert "20.0 MB allowed" in found["problem"]["what"]


def test_memory_is_bounded(tmp_path):
    content = b'{"a":[' + b'"xxxxxxxxxxxx",' * 3_000_000 + b'"x"]}'
    found, _ = survey(tmp_path, "a.json", content, memory_bytes=250_000_000, unpacked_bytes=10**9)
    assert "of memory" in found["problem"]["what"]


def test_time_is_bounded(tmp_path):
    content = b"text,label\n" + b"".join(b"some words %d,%d\n" % (at, at % 2) for at in range(400_000))
    found, seconds = survey(tmp_path, "a.csv", content, seconds=1, rows=10**9)
    assert found["state"] == "refused"
    assert seconds < 20


def test_killed_survey_is_retried_a_few_times(tmp_path):
    folder = tmp_path / "7"
    (folder / PLACE).mkdir(parents=True)
    (folder / "a.csv").write_bytes(b"text,label\n" + b"some words,1\n" * 300_000)
    job = {"path": str(folder / "a.csv"), "choices": {}, "limits": {**LIMITS, "rows": 10**9}}
    write_artifact(folder / PLACE, "k.job.json", job)
    for _ in range(3):
        watch = subprocess.Popen([sys.executable, "-P", "-m", "holdfast.service.survey_watch", str(folder), "k"])
        ends = time.monotonic() + 60
        while not (folder / PLACE / "work" / "job.json").exists() and time.monotonic() < ends:
            time.sleep(0.02)
        watch.send_signal(signal.SIGKILL)
        watch.wait()
        for path in (folder / PLACE / "work").glob("*"):
            path.unlink()
    assert not survey_watch.is_watched(folder)
    survey_watch.main(folder, "k")
    found = read_artifact(folder / PLACE / "k.json")
    assert "3 times" in found["problem"]["found"]


def test_two_at_once_survey_one_file_once(tmp_path):
    folder = tmp_path / "7"
    (folder / PLACE).mkdir(parents=True)
    (folder / "a.csv").write_text(ROWS)
    job = {"path": str(folder / "a.csv"), "choices": {}, "limits": LIMITS}
    write_artifact(folder / PLACE, "k.job.json", job)
    command = [sys.executable, "-P", "-m", "holdfast.service.survey_watch", str(folder), "k"]
    for watch in [subprocess.Popen(command) for _ in range(3)]:
        assert watch.wait(90) == 0
    assert read_artifact(folder / PLACE / "k.json")["state"] == "ready"
    assert (folder / PLACE / "k.tries").stat().st_size == 1


@pytest.fixture
def server(tmp_path):
    """A web server with a home of its own, and a session of somebody logged in: (port, cookie, home)."""
    home = tmp_path / "home"
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    (home / "incoming").mkdir(parents=True)
    env = {
        **os.environ,
        "HOLDFAST_HOME": str(home),
        "TMPDIR": str(home / "incoming"),
        "HOLDFAST_UPLOAD_BYTES": "5000000",
        "DJANGO_SETTINGS_MODULE": "holdfast.service.settings",
    }
    script = (
        "import django; django.setup()\n"
        "from django.core.management import call_command as call; call('migrate', verbosity=0)\n"
        "call('collectstatic', interactive=False, verbosity=0)\n"
        "from django.contrib.auth.models import User; from django.test import Client\n"
        "c = Client(); c.force_login(User.objects.create_user('ada')); print(c.cookies['sessionid'].value)\n"
    )
    made = subprocess.run([sys.executable, "-c", script], env=env, capture_output=True, text=True, check=True)
    command = [sys.executable, "-m", "uvicorn", "--port", str(port), "--log-level", "warning"]
    child = subprocess.Popen([*command, "holdfast.service.asgi:application"], env=env)
    try:
        ends = time.monotonic() + 90
        while time.monotonic() < ends:
            with socket.socket() as trial:
                if trial.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.1)
        yield port, made.stdout.strip(), home, child
    finally:
        child.kill()
        child.wait()


def begin_upload(port, cookie, length):
    """An upload of which the head is sent."""
    line = socket.create_connection(("127.0.0.1", port), timeout=30)
    boundary, end = "----holdfast", "\r\n"
    head = (
        f"POST /datasets/new HTTP/1.1\r\nHost: 127.0.0.1\r\n{f'Cookie: sessionid={cookie}{end}' if cookie else ''}"
        f"Content-Type: multipart/form-data; boundary={boundary}\r\nContent-Length: {length}\r\n\r\n"
        f'--{boundary}\r\nContent-Disposition: form-data; name="file"; filename="a.csv"\r\n\r\n'
    )
    line.sendall(head.encode())
    return line


def test_half_an_upload_leaves_nothing(server):
    port, cookie, home, child = server
    for is_killed in (False, True):
        line = begin_upload(port, cookie, 4_000_000)
        line.sendall(b"text,label\n" * 150_000)
        time.sleep(0.5)
        if is_killed:  # a server that goes away in the middle
            child.kill()
            child.wait()
        line.close()
        ends = time.monotonic() + 20
        while list((home / "incoming").iterdir()) and time.monotonic() < ends:
            time.sleep(0.1)
        assert list((home / "incoming").iterdir()) == []
        assert [path.name for path in (home / "datasets").iterdir() if path.name.isdigit()] == []


def test_too_much_is_refused_before_it_is_stored(server):
    port, cookie, home, _ = server
    refused = [(cookie, 50_000_000, "413", "too large"), ("", 4_000_000, "401", "log in again")]
    for given, length, status, words in (*refused, ("made-up", 4_000_000, "401", "log in again")):
        with begin_upload(port, given, length) as line:
            answer = line.makefile("rb").read().decode()
        assert answer.startswith(f"HTTP/1.1 {status}"), answer
        assert words in answer
    assert list((home / "incoming").iterdir()) == []


@pytest.fixture
def tiny_run(tmp_path):
    """A run folder with a tiny language model that nobody trained."""
    from tests.tiny import tiny_llama

    run = tmp_path / "run"
    (run / "attempts").mkdir(parents=True)
    tiny_llama(run / "model")
    write_artifact(run / "model", "holdfast.json", {"task": "causal"})
    return run


def test_model_server_is_restarted_after_it_dies(tiny_run):
    from holdfast.runs.model_server import open_model_server

    talk = open_model_server(tiny_run, PredictOptions(device="cpu", max_new_tokens=4))
    try:
        first = talk.ask("w1 w2 w3", 60)
        assert "answer" in first
        assert talk.ask("w1 w2 w3", 60) == first
        os.kill(talk._child.pid, signal.SIGKILL)
        with pytest.raises(HoldfastError, match="SIGKILL"):
            talk.ask("w1", 60)
        assert not talk.is_alive
    finally:
        talk.close()
    assert json.dumps(first)


def test_unloadable_model_is_reported(tiny_run):
    from holdfast.runs.model_server import open_model_server

    (tiny_run / "model" / "model.safetensors").write_bytes(b"not a model")
    talk = open_model_server(tiny_run, PredictOptions(device="cpu"))
    try:
        with pytest.raises(HoldfastError, match="cannot be loaded"):
            talk.ask("w1", 60)
    finally:
        talk.close()
