"""What an installed package has of a name, and which versions are asked for."""

import json
import subprocess
import sys

import pytest
from click.testing import CliRunner

from holdfast.cli import cli
from holdfast.core.facts import MachineFacts, Requirement, meets
from holdfast.core.plan import Plan
from holdfast.hazards.version_api_rename import invited_by
from holdfast.machine.installed_names import look_up, packages_folder
from holdfast.machine.libraries import read_distributions, unmet_requirements


@pytest.fixture
def packages(tmp_path):
    """An environment with a library, and another package that needs an older version of it."""
    folder = tmp_path / "lib" / "site-packages"
    (folder / "speechlib").mkdir(parents=True)
    (folder / "speechlib" / "__init__.py").write_text("from speechlib.loading import load_corpus_files\n")
    (folder / "speechlib" / "loading.py").write_text(
        "# load_corpus was removed in 3.2, use load_corpus_files\nclass Loader:\n    batch_count = 1\n"
    )
    for name, version, needs in (("speechlib", "3.4.1", ""), ("oldtool", "1.0", "Requires-Dist: speechlib (<3)\n")):
        (folder / f"{name}-{version}.dist-info").mkdir()
        (folder / f"{name}-{version}.dist-info" / "METADATA").write_text(
            f"Name: {name}\nVersion: {version}\n{needs}\nText\n"
        )
    return folder


def test_missing_name_with_its_neighbor_note_and_pins(packages, tmp_path):
    (tmp_path / "requirements.txt").write_text("torch\nspeechlib==2.9  # tried\n")
    found = look_up(packages, "speechlib", "load_corpus", tmp_path)
    assert (found.library, found.version, found.has_name) == ("speechlib", "3.4.1", False)
    assert "load_corpus_files" in found.near
    assert found.gone_since == "3.2"
    assert [(pin.source, pin.requirement, pin.is_met) for pin in found.pins] == [
        ("requirements.txt:2", "speechlib==2.9", False),
        ("oldtool 1.0", "speechlib<3", False),
    ]


def test_name_that_is_there_is_reported_as_such(packages):
    assert look_up(packages, "speechlib.loading", "Loader").has_name


def test_other_machines_packages_are_not_consulted(packages):
    assert packages_folder(["/nowhere/lib/site-packages/speechlib/__init__.py", "train.py"]) is None
    assert packages_folder([f"{packages}/speechlib/__init__.py"]) == packages
    assert look_up(packages, "unknownlib", "x") is None


def test_unmet_requirement_is_reported_before_the_run(packages):
    unmet = unmet_requirements([packages], read_distributions([packages]).versions)
    assert unmet == (Requirement("oldtool", "1.0", "speechlib", "<3"),)
    needs = (Requirement("trl", "0.9.6", "transformers", "<5"),)
    invited = invited_by(MachineFacts(distributions={"transformers": "5.1", "trl": "0.9.6"}, unmet=needs), Plan())
    assert invited is not None
    assert invited_by(MachineFacts(distributions={"transformers": "5.1"}), Plan()) is None


@pytest.mark.parametrize(
    ("version", "specifier", "is_met"),
    [
        ("4.30.2", ">=4.30,<5", True),
        ("5.0", "<5", False),
        ("2.8.0+cu126", "==2.8.*", True),
        ("2.9", "~=2.8", True),
        ("3.0", "~=2.8", False),
        ("2.8.9", "~=2.8.1", True),
        ("1.0", "!=1.0", False),
        ("5.9.1", "!=5.0.*,>=4.12", True),
        ("5.0.3", "!=5.0.*", False),
        ("1.0", "", True),
    ],
)
def test_versions_meet_specifiers(version, specifier, is_met):
    assert meets(version, specifier) is is_met


def test_explain_consults_the_environment_of_a_real_traceback(tmp_path):
    script = tmp_path / "train.py"
    script.write_text("from msgspec import Structs\n")
    (tmp_path / "requirements.txt").write_text("msgspec==0.1\n")
    log = tmp_path / "train.log"
    log.write_text(subprocess.run([sys.executable, script], capture_output=True, text=True).stderr)
    found = json.loads(CliRunner().invoke(cli, ["explain", str(log), "--json"]).stdout)
    assert found["slug"] == "version-api-rename"
    assert found["installed"]["library"] == "msgspec"
    assert not found["installed"]["has_name"]
    assert "Struct" in found["installed"]["near"]
    assert found["installed"]["pins"][0]["requirement"] == "msgspec==0.1"
