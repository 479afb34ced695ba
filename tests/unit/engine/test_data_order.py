import numpy as np

from holdfast.engine.batches import micro_batches
from holdfast.engine.data_order import DataOrder

LENGTHS = np.random.default_rng(1).integers(3, 200, 1000)


def test_batch_depends_only_on_seed_and_step():
    forward = DataOrder(LENGTHS, 16, seed=7)
    in_order = [forward.examples(step) for step in range(200)]
    for step in (199, 3, 70, 71, 0):
        assert np.array_equal(DataOrder(LENGTHS, 16, seed=7).examples(step), in_order[step])
    assert not np.array_equal(DataOrder(LENGTHS, 16, seed=8).examples(0), in_order[0])


def test_each_epoch_sees_every_example_once():
    for pool in (1, 8):
        order = DataOrder(LENGTHS, 16, seed=7, pool_batches=pool)
        for epoch in (0, 1):
            first = epoch * order.steps_per_epoch
            seen = np.concatenate([order.examples(first + step) for step in range(order.steps_per_epoch)])
            assert np.array_equal(np.sort(seen), np.arange(1000))


def test_pooled_steps_have_texts_of_similar_length():
    plain, pooled = DataOrder(LENGTHS, 16, seed=7), DataOrder(LENGTHS, 16, seed=7, pool_batches=16)
    spread = [np.mean([np.ptp(LENGTHS[order.examples(step)]) for step in range(60)]) for order in (plain, pooled)]
    assert spread[1] < spread[0] / 3


def test_micro_batch_split_keeps_examples_and_order():
    examples = DataOrder(LENGTHS, 16, seed=7).examples(3)
    whole = np.concatenate(list(micro_batches(examples, LENGTHS, 10**9)))
    for most_tokens in (1, 100, 500):
        parts = list(micro_batches(examples, LENGTHS, most_tokens))
        assert np.array_equal(np.concatenate(parts), whole)
        assert all(len(part) == 1 or LENGTHS[part].sum() <= most_tokens for part in parts)
