"""Wrong labels are found by predictions that have not seen them, through `holdfast survey --check-labels`."""

import csv
import json
import random

import pytest
from click.testing import CliRunner

from holdfast.cli.survey import survey as survey_command
from holdfast.core.errors import RequestError
from tests.unit.data.conftest import WORDS, csv_text

TOPICS = {"art": WORDS[:14], "nature": WORDS[20:34], "home": WORDS[34:]}


def texts(count: int) -> list[tuple[str, str]]:
    draws = random.Random(4)
    names = list(TOPICS)
    mixed = [(" ".join(draws.choices(TOPICS[names[at % 3]] + WORDS[14:20], k=9)), names[at % 3]) for at in range(count)]
    return [(f"{text} {at}", label) for at, (text, label) in enumerate(mixed)]


def checked(write, tmp_path, rows) -> tuple[dict, list[dict]]:
    path, out = write("a.csv", csv_text(rows)), tmp_path / "doubtful.csv"
    words = [str(path), "--check-labels", str(out), "--json"]
    done = CliRunner().invoke(survey_command, words, catch_exceptions=False)
    with out.open(newline="", encoding="utf-8") as file:
        return json.loads(done.stdout), list(csv.DictReader(file))


def test_swapped_labels_are_listed_first(write, tmp_path):
    rows = texts(600)
    swapped = random.Random(5).sample(range(600), 30)
    for at in swapped:
        rows[at] = (rows[at][0], "home" if rows[at][1] != "home" else "art")
    found, doubtful = checked(write, tmp_path, rows)
    listed = [int(one["row"]) - 2 for one in doubtful]
    assert len(set(listed[:30]) & set(swapped)) >= 22  # 1.5 by chance
    assert len(set(listed) & set(swapped)) >= 24
    right = dict(texts(600))
    assert sum(one["predicted"] == right[one["text"]] for one in doubtful[:30]) >= 22
    assert doubtful[0]["label"] == rows[listed[0]][1]
    (warning,) = [one for one in found["warning_details"] if one["kind"] == "doubtful-labels"]
    assert (warning["values"]["rows"], warning["values"]["checked"]) == (len(doubtful), 600)
    assert warning["values"]["file"] == "doubtful.csv"


def test_clean_labels_are_left_alone(write, tmp_path):
    found, doubtful = checked(write, tmp_path, texts(600))
    assert len(doubtful) <= 6
    assert checked(write, tmp_path, texts(600))[1] == doubtful
    assert found["rows"] == 600


def test_copies_of_a_wrong_row_do_not_hide_it(write, tmp_path):
    rows = texts(600)
    wrong = (rows[0][0], "home")
    _, doubtful = checked(write, tmp_path, [*rows[1:], *[wrong] * 3])
    assert sum(one["text"] == wrong[0] for one in doubtful) == 3


def test_several_labels_are_refused(write, tmp_path):
    rows = [{"text": text, "labels": [label, "all"]} for text, label in texts(60)]
    words = [str(write("a.jsonl", rows)), "--check-labels", str(tmp_path / "out.csv")]
    with pytest.raises(RequestError) as caught:
        CliRunner().invoke(survey_command, words, catch_exceptions=False)
    assert caught.value.setting == "check_labels"
