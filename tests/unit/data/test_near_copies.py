"""Near-duplicates across splits are found, whatever their number, and nothing else is."""

import random
from array import array

import pytest

from holdfast.data import near_copies
from holdfast.data.data_request import DataRequest
from holdfast.data.examples import content_hash
from holdfast.data.near_copies import NearCopies
from holdfast.data.survey_dataset import survey
from tests.unit.data.conftest import csv_text

DRAWS = random.Random(3)
VOCABULARY = ["".join(DRAWS.choices("abcdefghiklmnoprstu", k=DRAWS.randint(2, 9))) for _ in range(3000)]


@pytest.fixture(autouse=True)
def same_draws():
    """Give each test the same texts, whichever tests ran before."""
    DRAWS.seed(7)


def text(words: int = 24) -> str:
    return " ".join(DRAWS.choices(VOCABULARY, k=words))


def edited(original: str) -> str:
    """The same with another last word, other case and punctuation."""
    *words, _ = original.split()
    return (", ".join([" ".join(words[:5]), " ".join([*words[5:], "changed"])]) + "!").upper()


def found(trained: list[str], held: list[str]) -> list[tuple[int, int]]:
    copies = NearCopies()
    for one in [*trained, *held]:
        copies.add(one)
    keys = array("Q", map(content_hash, [*trained, *held]))
    splits = bytearray([0] * len(trained) + [2] * len(held))
    return [(copy.held - len(trained), copy.trained) for copy in copies.across(splits, keys)]


@pytest.mark.parametrize("buffer_bytes", [200, 1 << 21])
def test_edited_texts_are_found_with_their_originals(monkeypatch, buffer_bytes):
    monkeypatch.setattr(near_copies, "_BUFFER_BYTES", buffer_bytes)
    monkeypatch.setattr(near_copies, "_CHUNK_ROWS", 64)
    trained = [text() for _ in range(500)]
    held = [text() for _ in range(100)]
    for at in range(0, 100, 10):
        held[at] = edited(trained[at * 4])
    right = {(at, at * 4) for at in range(0, 100, 10)}
    copies = set(found(trained, held))
    assert copies <= right
    assert len(copies) >= 8  # the method is one of chance


def test_exact_copies_and_short_texts_are_not_listed():
    trained = [text() for _ in range(50)]
    assert (
        found([*trained, "thank you very much"], [trained[3], f"  {trained[4].upper()}", "thank you very much indeed"])
        == []
    )


def test_half_of_a_text_is_not_enough():
    trained = [text(40) for _ in range(50)]
    assert found(trained, [" ".join(one.split()[:20]) + " " + text(20) for one in trained]) == []


def test_scripts_without_spaces():
    trained = ["".join(DRAWS.choices("这部电影的情节非常精彩而且演员表也很出色值得一看再", k=40)) for _ in range(30)]
    assert found(trained, [trained[7][:-1] + "吗", "".join(reversed(trained[8]))]) == [(0, 7)]


def test_thousands_of_alike_texts_take_bounded_work():
    trained = [f"please review the attached invoice for the month of may and reply soon {at}" for at in range(3000)]
    held = [f"please review the attached invoice for the month of may and reply soon x{at}" for at in range(200)]
    assert len(found(trained, held)) >= 190


def test_survey_reports_rows_and_split(write, tmp_path):
    trained = [text() for _ in range(60)]
    held = [text() for _ in range(20)]
    held[4] = edited(trained[9])
    write("train.csv", csv_text([(one, "ab"[at % 2]) for at, one in enumerate(trained)]))
    write("test.csv", csv_text([(f'"{one}"', "ab"[at % 2]) for at, one in enumerate(held)]))
    facts = survey(DataRequest(path=tmp_path, validation_share=0)).facts
    (values,) = [one.values for one in facts.warnings if one.kind == "near-copies"]
    assert values == {"rows": 1, "split": "test", "part": "text", "pairs": ("6 and 11",)}
