"""`holdfast explain` as a person types it."""

import gzip
import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from holdfast.cli import cli
from holdfast.core.errors import RequestError
from holdfast.doctor.checkup import OWN_FINDINGS

ABORT = "OMP: Error #15: Initializing libomp.dylib, but found libomp.dylib already initialized.\n"


def run(*args: str, stdin: bytes = b""):
    return CliRunner().invoke(cli, ["explain", *args], input=stdin)


def test_a_log_is_named_with_the_line_that_proves_it(tmp_path):
    log = tmp_path / "train.log"
    log.write_text("starting\n" + ABORT)
    found = run(str(log))
    assert found.exit_code == 0
    assert "[openmp-duplicate, proven]" in found.stdout
    assert "line 2: OMP: Error #15" in found.stdout


def test_json_is_one_object_with_the_promised_fields():
    found = json.loads(run("-", "--json", stdin=ABORT.encode()).stdout)
    assert found["slug"] == "openmp-duplicate"
    assert found["confidence"] == "proven"
    assert found["because"][0] == {"source": "error", "line": 1, "text": ABORT.strip()}
    assert {"title", "runner_up", "remedies", "sources"} <= set(found)


def test_unknown_is_an_answer_not_a_failure():
    found = run("-", "--json", stdin=b"KeyError: 'x'\n")
    assert found.exit_code == 0
    assert json.loads(found.stdout)["slug"] == "unknown"


def test_a_hazard_prints_its_page():
    found = run("dataloader-shm")
    hazard = json.loads(run("dataloader-shm", "--json").stdout)
    assert hazard["slug"] == "dataloader-shm"
    assert "docker run --shm-size=8g" in found.stdout
    assert " ".join(hazard["story"].split()[:40]) in " ".join(found.stdout.split())


@pytest.mark.parametrize("slug", OWN_FINDINGS)
def test_a_finding_of_doctors_own_is_explained_too(slug):
    assert f"[{slug}]" in run(slug).stdout
    assert json.loads(run(slug, "--json").stdout)["story"] == OWN_FINDINGS[slug]


def test_a_misspelt_hazard_gets_a_guess():
    found = run("dataloder-shm")
    assert isinstance(found.exception, RequestError)
    assert found.exception.try_next == ("holdfast explain dataloader-shm",)


@pytest.mark.parametrize("what", ["missing.log", "."])
def test_non_log_is_refused_with_advice(what):
    found = run(what)
    assert isinstance(found.exception, RequestError)
    assert found.exception.exit_code == 2
    assert found.exception.try_next


@pytest.mark.parametrize(
    ("name", "content", "kind"),
    [
        ("noise.log", bytes(range(256)) * 40, "binary data"),
        ("noise.log.gz", gzip.compress(bytes(range(256)) * 40), "binary data"),
        ("weights.bin", b"\x80\x04\x95" + b"\x01\xff" * 50, "a pickle"),
        ("log.xz", b"\xfd7zXZ\x00\x00\x04" + bytes(range(256)), "xz-compressed data"),
    ],
)
def test_a_binary_log_is_refused_by_name(tmp_path, name, content, kind):
    (tmp_path / name).write_bytes(content)
    refused = run(str(tmp_path / name))
    assert isinstance(refused.exception, RequestError)
    assert str(tmp_path / name) in refused.exception.what
    assert refused.exception.found.startswith(kind)
    piped = run("-", stdin=content).exception
    assert isinstance(piped, RequestError)
    assert "standard input" in piped.what


def test_a_log_may_have_backspaces_and_holes():
    said = run("-", stdin=b"\0" * 5000 + b"epoch 1\b\b\b\b\b\b\bepoch 2\n" * 9)
    assert "[?]" in said.output


def test_invalid_exit_is_refused():
    found = run("-", "--exit", "banana")
    assert isinstance(found.exception, RequestError)


def test_a_narrow_headline_keeps_its_slug_whole(monkeypatch):
    monkeypatch.setenv("COLUMNS", "41")
    lines = run("-", stdin=ABORT.encode()).output.splitlines()
    assert all(len(line) <= 41 for line in lines[:3])
    assert lines[0].startswith("[x] ")
    assert lines[1].startswith("    ")
    assert lines[2].strip() == "[openmp-duplicate, proven]"


def test_terminal_codes_in_a_log_never_reach_the_terminal():
    found = run("-", stdin=b"\x1b[31m\x1b]0;title\x07" + ABORT.encode().replace(b"#15", b"#15\x1b[2J\x08"))
    assert "openmp-duplicate" in found.stdout
    assert "\x1b" not in found.stdout
    assert "\x08" not in found.stdout


def test_the_readme_shows_what_the_command_prints(monkeypatch):
    root = Path(__file__).parents[3]
    monkeypatch.chdir(root)
    monkeypatch.setenv("COLUMNS", "100")
    printed = run("examples/crashed_run.log").stdout
    assert f"$ holdfast explain examples/crashed_run.log\n{printed}```" in (root / "README.md").read_text(
        encoding="utf-8"
    )


def test_other_folders_are_refused_by_explain(tmp_path):
    (tmp_path / "bank-1").mkdir()
    (tmp_path / "bank-1" / "request.json").touch()
    refused = run(str(tmp_path)).exception
    assert isinstance(refused, RequestError)
    assert str(tmp_path) in refused.what
    assert "bank-1" in refused.found
    assert f"{tmp_path}/bank-1?" in refused.try_next[0]
    assert refused.try_next[1].endswith("FOLDER/the.log")
