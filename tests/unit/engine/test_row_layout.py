"""Texts in rows of a few sizes: every token has one place, and few sizes serve all steps."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.engine.row_layout import FILLER, lay_out, round_up

LENGTHS = st.lists(st.integers(1, 400), min_size=1, max_size=80)


@given(LENGTHS)
@settings(deadline=None, max_examples=60)
def test_every_token_has_its_own_place_within_one_row(lengths):
    layout = lay_out(lengths)
    flat, tokens = layout.texts_RT.ravel(), layout.texts_RT.shape[1]
    assert len(set(layout.places_N.tolist())) == sum(lengths)
    assert (flat[layout.places_N] == np.repeat(np.arange(len(lengths)), lengths)).all()
    assert (flat != FILLER).sum() == sum(lengths)
    for text, size in enumerate(lengths):
        first = int(layout.first_B[text])
        assert (flat[first : first + size] == text).all()
        assert first // tokens == (first + size - 1) // tokens


def test_a_run_has_few_shapes():
    draws = np.random.default_rng(0)
    shapes = {lay_out(draws.integers(5, 60, 16).tolist()).texts_RT.shape for _ in range(500)}
    assert len(shapes) <= 5
    mixed = {lay_out(draws.integers(5, 500, draws.integers(2, 40)).tolist()).texts_RT.shape for _ in range(500)}
    assert len(mixed) <= 40


def test_rows_are_well_filled():
    draws = np.random.default_rng(0)
    for low, high, count in ((5, 60, 200), (5, 500, 64), (120, 160, 32)):
        lengths = draws.integers(low, high, count).tolist()
        assert sum(lengths) > 0.65 * lay_out(lengths).texts_RT.size


def test_sizes_grow_by_a_quarter():
    assert [round_up(count) for count in (1, 2, 3, 5, 7, 9, 13, 17, 33)] == [1, 2, 3, 6, 8, 10, 14, 20, 40]
    assert round_up(300, 256) == 512
