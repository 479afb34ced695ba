"""The lines of docs/api.md for `holdfast jobs`, typed one after the other against a real service."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs_text import ROOT, blocks_of
from tests.service.place import place
from tests.service.test_local_service import serve

pytestmark = [pytest.mark.service, pytest.mark.full, pytest.mark.timeout(600)]
KEEP_MODEL = (
    "from holdfast.models.store import keep; from tests.tiny import tiny_bert; keep('tiny', 'a test', tiny_bert)"
)
LINES = [
    command
    for block in blocks_of(ROOT / "docs" / "api.md")
    for command in block.commands
    if command.startswith("holdfast jobs")
]


def test_every_line_of_the_page_works(tmp_path):
    with place(tmp_path, tmp_path) as site:
        subprocess.run([sys.executable, "-c", KEEP_MODEL], env=site.environment, cwd=ROOT, check=True)
        _, port = serve(site)
        shutil.copytree(ROOT / "examples", tmp_path / "examples")
        variables = site.environment | {"PATH": f"{Path(sys.executable).parent}:{site.environment['PATH']}"}
        said = {}
        for line in LINES:
            command = line.replace("--model minilm", "--model tiny")  # no hub is within reach
            done = subprocess.run(
                ["bash", "-c", command], cwd=tmp_path, env=variables, capture_output=True, text=True, timeout=400
            )
            said[line] = done.stdout + done.stderr
            is_late = line.startswith(("holdfast jobs stop", "holdfast jobs resume"))  # it has finished by then
            assert done.returncode == (2 if is_late else 0), said
            if token := re.search(r"\bhfk_\S+", done.stdout):
                variables |= {"HOLDFAST_TOKEN": token[0], "HOLDFAST_SERVER": f"http://127.0.0.1:{port}"}
        assert len(LINES) >= 8
        assert (tmp_path / "bank-model" / "model.safetensors").exists()
        assert (tmp_path / "bank.html").exists()
