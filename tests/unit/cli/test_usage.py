"""A wrong command line is told in the form of every other error."""

import pytest

from holdfast.cli import main


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            "predict RUN",
            "error: holdfast predict needs TEXT... | FILE | -\n  try    holdfast predict [OPTIONS] RUN TEXT",
        ),
        ("predict RUN text --tpo 3", "error: no such option '--tpo'"),
        ("trian", "error: there is no command 'trian'. Did you mean 'train'?"),
        ("explain --exit", "error: option '--exit' requires an argument\n  try    holdfast --help"),
        ("export RUN", "error: missing option '--to'. Choose from: script, notebook, docker"),
    ],
)
def test_a_usage_error_shows_the_right_usage(words, said, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["holdfast", *words.split()])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert capsys.readouterr().err.startswith(said)


def test_command_group_alone_lists_its_commands(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["holdfast", "jobs"])
    with pytest.raises(SystemExit):
        main()
    shown = capsys.readouterr().err
    assert {"submit", "watch", "stop"} <= set(shown.split())
