"""A missing path is guessed at only where something beside it has nearly its name."""

from pathlib import Path

import pytest

from holdfast.core.path_guess import did_you_mean

BESIDE = (
    "train.csv",
    "reviews.csv",
    "Notes.csv",
    "data.jsonl",
    "data.csv.gz",
    "a.csv",
    ".draft.csv",
    "bank-1",
    "fit-1",
)


@pytest.mark.parametrize(
    ("missing", "meant"),
    [
        ("trian.csv", "train.csv"),
        ("revews.csv", "reviews.csv"),
        ("notes.csv", "Notes.csv"),
        ("train.jsonl", "train.csv"),
        ("data.csv", "data.csv.gz"),
        ("data.json", "data.jsonl"),
        ("bank-2", "bank-1"),
        ("fit", "fit-1"),
        ("b.csv", None),
        ("nosuch.csv", None),
        ("test.csv", None),
        ("draft.csv", None),
        ("x.csv", None),
    ],
)
def test_only_a_name_that_is_truly_close_is_proposed(tmp_path, missing, meant):
    for name in BESIDE:
        (tmp_path / name).touch()
    proposed = did_you_mean(tmp_path / missing)
    assert [words.split()[-1] for words in proposed] == ([f"{tmp_path / meant}?"] if meant else [])


def test_missing_folder_gets_no_suggestion(tmp_path):
    assert did_you_mean(tmp_path / "nowhere" / "train.csv") == ()


def test_only_requested_candidates_are_proposed(tmp_path):
    (tmp_path / "train.py").touch()
    (tmp_path / "train-1").mkdir()
    (proposed,) = did_you_mean(tmp_path / "train", Path.is_dir)
    assert proposed.split()[-1] == f"{tmp_path / 'train-1'}?"
