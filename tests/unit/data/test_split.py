"""Splits depend on content and seed alone, keep copies together and keep the labels' shares."""

from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.errors import RequestError
from holdfast.data.data_request import DataRequest
from holdfast.data.examples import exact_hash
from holdfast.data.split import MOST_ROWS, cut, draw, folds_of, repeated, split_off

SHARES = {"validation": 0.1, "test": 0.1}


def keys(count: int, start: int = 0) -> list[int]:
    return [exact_hash(f"text {number}") for number in range(start, start + count)]


def test_shares_are_kept_for_every_class():
    classes = [0] * 2000 + [1] * 300 + [2] * 40 + [3] * 12
    codes = cut(keys(len(classes)), classes, SHARES, seed=1)
    for number, size in Counter(classes).items():
        for code in (1, 2):
            count = sum(codes[row] == code for row in range(len(classes)) if classes[row] == number)
            assert abs(count - size / 10) <= max(1, 0.25 * size / 10), (number, code, count)
            assert count >= 1


def test_small_classes_stay_in_training():
    codes = cut(keys(400), [0] * 396 + [1] * 3 + [2], SHARES, seed=1)
    assert not any(codes[396:])


def test_many_small_classes_still_give_a_validation_split():
    classes = [row // 3 for row in range(300)]
    codes = cut(keys(300), classes, SHARES, seed=1)
    assert abs(codes.count(1) - 30) <= 3
    assert {classes[row] for row in range(300) if codes[row] == 0} == set(range(100))


def test_four_rows_give_one_to_validation():
    assert cut(keys(4), [0, 0, 1, 1], SHARES, seed=3).count(1) == 1


def test_added_rows_move_no_old_ones_in_a_large_class():
    few, many = keys(3000), keys(6000)
    assert cut(many, [0] * 6000, SHARES, 7)[:3000] == cut(few, [0] * 3000, SHARES, 7)


def test_a_very_large_dataset_gives_a_bounded_split():
    count = 3 * 10 * MOST_ROWS
    codes = cut([number * 2654435761 for number in range(count)], [0] * count, SHARES, 1)
    assert abs(codes.count(2) - MOST_ROWS) < MOST_ROWS / 10


@given(st.lists(st.integers(0, 40), min_size=1, max_size=80), st.integers(0, 3), st.randoms(use_true_random=False))
def test_order_does_not_matter_and_copies_stay_together(numbers, seed, shuffler):
    rows = [(exact_hash(str(number)), number % 3) for number in numbers]
    where = dict(zip(rows, cut([key for key, _ in rows], [label for _, label in rows], SHARES, seed), strict=True))
    shuffled = rows[:]
    shuffler.shuffle(shuffled)
    codes = cut([key for key, _ in shuffled], [label for _, label in shuffled], SHARES, seed)
    assert dict(zip(shuffled, codes, strict=True)) == where
    assert 0 in codes


@given(st.lists(st.tuples(st.integers(0, 10), st.integers(0, 2)), min_size=1, max_size=60))
def test_copies_with_different_labels_stay_together(rows):
    codes = cut([exact_hash(str(key)) for key, _ in rows], [label for _, label in rows], SHARES, 5)
    found: dict[int, set[int]] = {}
    for (key, _), code in zip(rows, codes, strict=True):
        found.setdefault(key, set()).add(code)
    assert all(len(splits) == 1 for splits in found.values())


@pytest.mark.parametrize("seed", [0, 1, 42])
def test_the_seed_decides(seed):
    draws = [draw(key, seed) for key in keys(2000)]
    assert all(0 <= value < 1 for value in draws)
    assert abs(sum(draws) / 2000 - 0.5) < 0.03
    assert cut(keys(500), [0] * 500, SHARES, seed) != cut(keys(500), [0] * 500, SHARES, seed + 1)


def test_repeated_values_are_found():
    assert repeated([5, 1, 5, 2, 1, 3]) == {1, 5}


class TestFolds:
    def test_every_row_is_tested_once_with_its_copies(self):
        keys = [*range(1, 101), *range(1, 11)]
        classes = [at % 3 for at in range(110)]
        parts = folds_of(keys, classes, 5, seed=1)
        assert all(parts[at] == parts[100 + at] for at in range(10))
        for number in range(3):
            counts = Counter(part for part, own in zip(parts, classes, strict=True) if own == number)
            assert len(counts) == 5
            assert max(counts.values()) - min(counts.values()) <= 8

    def test_small_classes_do_not_all_go_to_one_fold(self):
        parts = folds_of(list(range(1, 51)), list(range(50)), 5, seed=1)
        assert sorted(Counter(parts).values()) == [10] * 5

    @pytest.mark.parametrize("fold", [1, 2, 3])
    def test_the_others_are_for_training_and_validation(self, fold):
        request = DataRequest(path=Path("x"), folds=3, fold=fold)
        splits = bytearray(90)
        split_off(splits, list(range(1, 91)), [0] * 90, ["train"], request)
        parts = folds_of(list(range(1, 91)), [0] * 90, 3, request.seed)
        assert [at for at in range(90) if splits[at] == 2] == [at for at in range(90) if parts[at] == fold - 1]
        assert 2 <= splits.count(1) <= 12

    @pytest.mark.parametrize(("rows", "brought"), [(90, ["train", "test"]), (2, ["train"])])
    def test_impossible_folds_are_refused(self, rows, brought):
        request = DataRequest(path=Path("x"), folds=5, fold=5)
        with pytest.raises(RequestError) as caught:
            split_off(bytearray(rows), list(range(1, rows + 1)), [0] * rows, brought, request)
        assert caught.value.setting == "folds"


def test_uneven_shares_are_stated_as_they_are():
    copies = [number % 3 * 2654435761 for number in range(120)]
    for request in (DataRequest(path=Path("x"), seed=seed) for seed in range(20)):
        splits = bytearray(120)
        chosen = split_off(splits, copies, [0] * 120, (), request)
        real = [f"{splits.count(code) / 120:.0%} for {name}" for code, name in ((1, "validation"), (2, "test"))]
        assert chosen.value == " and ".join(real)
