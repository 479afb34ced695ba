"""The options of `holdfast train` are the fields of the request."""

import pytest
from click.testing import CliRunner

from holdfast.cli.run import run
from holdfast.cli.train import train
from holdfast.core.errors import RequestError
from holdfast.core.request import FIELDS
from holdfast.core.text import option


def test_help_has_every_setting_in_its_group():
    said = CliRunner().invoke(train, ["--help"]).output
    assert all(option(name) in said for name in FIELDS)
    assert [line for line in said.splitlines() if line in ("The data:", "What is learned:", "The run:")]


def test_a_misspelt_option_gets_a_guess():
    said = CliRunner().invoke(train, ["x.csv", "--learnig-rate", "1"]).output
    assert "--learning-rate" in said


def test_an_option_goes_before_the_file(tmp_path):
    (tmp_path / "run.toml").write_text('data = "x.csv"\nlr = 99\nbatch_size = 0\n')
    with pytest.raises(RequestError) as raised:
        train.main(["--config", str(tmp_path / "run.toml"), "--lr", "1e-3"], standalone_mode=False)
    assert [problem.setting for problem in raised.value.problems] == ["batch_size"]


def test_a_flag_that_was_not_given_does_not_hide_what_the_file_says(tmp_path):
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
def test_a_wait_for_machines_is_refused_where_there_is_one(tmp_path, monkeypatch, command, words):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "wait.toml").write_text("nodes_wait = 60\n")
    with pytest.raises(RequestError) as raised:
        command.main(words, standalone_mode=False)
    assert raised.value.setting == "nodes_wait"
    assert [path.name for path in tmp_path.iterdir()] == ["wait.toml"]
