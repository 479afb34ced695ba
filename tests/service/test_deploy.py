"""The files in deploy/ fit the compose schema and our settings, extras and commands."""

import json
import re
import subprocess
import sys
import tomllib

import pytest
import yaml

from holdfast.cli import COMMANDS
from tests.service.place import ROOT

COMPOSE, DOCKERFILE = ROOT / "deploy" / "compose.yaml", ROOT / "deploy" / "Dockerfile"


@pytest.fixture(scope="module")
def services():
    return yaml.safe_load(COMPOSE.read_text())["services"]


def test_the_compose_file_is_one_by_the_compose_schema(tmp_path):
    wrong = tmp_path / "compose.yaml"
    wrong.write_text(COMPOSE.read_text().replace("shm_size", "shm_sise"))
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec", "-o", "JSON"]
    done = subprocess.run([*command, str(COMPOSE), str(wrong)], capture_output=True, text=True)
    (error,) = json.loads(done.stdout)["errors"]
    assert error["filename"] == str(wrong)  # as the schema tells what is wrong, ours is right
    assert "shm_sise" in error["message"]


def test_compose_variables_are_documented(services):
    known = (ROOT / "docs" / "service.md").read_text()
    given = {name for service in services.values() for name in service.get("environment", {}) if "HOLDFAST" in name}
    assert len(given) > 3
    assert [name for name in given if f"`{name}`" not in known] == []


def test_container_commands_exist(services):
    for service in services.values():
        words = str(service.get("command", "")).split()
        for at, word in enumerate(words[:-1]):
            if word == "holdfast":
                assert words[at + 1] in COMMANDS
        for place in service.get("depends_on", {}):
            assert place in services


def test_image_uses_existing_files_and_extras():
    text = DOCKERFILE.read_text()
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    asked = re.search(r"/src\[([\w,]+)\]", text)[1].split(",")
    assert {"train", "serve", "postgres", "s3"} == {*asked} & {*extras}
    for line in re.findall(r"^COPY (.+) \S+$", text, re.MULTILINE):
        for name in line.split():
            assert (ROOT / name).exists(), name
