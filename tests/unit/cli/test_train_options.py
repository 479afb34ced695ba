"""The options of `holdfast train` are the fields of the request."""

import pytest
from click.testing import CliRunner

from holdfast.cli.run import run
from holdfast.cli.train import train
from holdfast.core.errors import RequestError
from holdfast.core.settings import GROUPS, SETTINGS
from holdfast.core.text import option


def test_help_all_shows_every_setting_in_its_group():
    shown = CliRunner().invoke(train, ["--help-all"]).output
    assert all(option(name) in shown for name in SETTINGS)
    assert [line.rstrip(":") for line in shown.splitlines() if line.rstrip(":") in GROUPS.values()] == [
        *GROUPS.values()
    ]


def test_help_shows_only_the_common_settings():
    shown = CliRunner().invoke(train, ["--help"]).output
    basic = {name for name, field in SETTINGS.items() if "basic" in field.traits}
    assert {name for name in SETTINGS if f" {option(name)} " in shown} == basic
    assert 8 <= len(basic) <= 14


def test_misspelled_option_gets_a_suggestion():
    said = CliRunner().invoke(train, ["x.csv", "--learnig-rate", "1"]).output
    assert "--learning-rate" in said


def test_option_overrides_the_file(tmp_path):
    (tmp_path / "run.toml").write_text('data = "x.csv"\nlr = 99\nbatch_size = 0\n')
    with pytest.raises(RequestError) as raised:
        train.main(["--config", str(tmp_path / "run.toml"), "--lr", "1e-3"], standalone_mode=False)
    assert [problem.setting for problem in raised.value.problems] == ["batch_size"]


def test_a_missing_flag_keeps_the_value_of_the_file(tmp_path):
    (tmp_path / "run.toml").write_text('data = "x.csv"\nallow_changes = "perhaps"\n')
    with pytest.raises(RequestError) as raised:
        train.main(["--config", str(tmp_path / "run.toml")], standalone_mode=False)
    assert [(one.setting, one.value) for one in raised.value.problems] == [("allow_changes", "perhaps")]


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (train, ["x.csv", "--nodes-wait", "60"]),
        (train, ["x.csv", "--nodes-wait", "60", "--nodes", "1"]),
        (train, ["x.csv", "--config", "wait.toml"]),
        (run, ["--nodes-wait", "60", "--", "true"]),
        (run, ["--nodes-wait", "60", "--nodes", "1", "--run", "x", "--", "true"]),
    ],
)
def test_nodes_wait_is_refused_for_one_machine(tmp_path, monkeypatch, command, words):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "wait.toml").write_text("nodes_wait = 60\n")
    with pytest.raises(RequestError) as raised:
        command.main(words, standalone_mode=False)
    assert raised.value.setting == "nodes_wait"
    assert [path.name for path in tmp_path.iterdir()] == ["wait.toml"]
