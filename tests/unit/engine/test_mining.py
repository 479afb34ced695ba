import numpy as np
import torch

from holdfast.engine.corpus_search import mine
from holdfast.engine.mining import Mining

# One query whose scores with the passages are 1.0, 0.9, 0.8 ... 0.1.
QUERY = torch.tensor([[1.0]])
CORPUS = torch.arange(10, 0, -1)[:, None] / 10


def mined(answer=0, hidden=(0,), seed=1, epoch=1, **how):
    found = mine(
        QUERY,
        CORPUS,
        np.array([0]),
        np.array([answer]),
        [np.array(hidden, dtype=np.int64)],
        Mining(**({"margin": 0.0} | how)),
        seed,
        epoch,
    )
    return found[0].tolist()


def test_negatives_come_from_the_window():
    assert sorted(mined(first_rank=2, last_rank=5, negatives=9)) == [-1] * 6 + [3, 4, 5]
    assert sorted(mined(first_rank=0, last_rank=3, negatives=3)) == [1, 2, 3]


def test_passages_too_close_to_the_answer_are_skipped():
    # The answer scores 0.6; with a margin of a third, only 0.4 and below may be near-misses.
    assert sorted(mined(answer=4, hidden=(4,), margin=1 / 3 - 1e-6, last_rank=10, negatives=4)) == [6, 7, 8, 9]


def test_hidden_passages_are_never_mined():
    assert sorted(mined(hidden=range(8), last_rank=10, negatives=4)) == [-1, -1, 8, 9]


def test_mining_depends_only_on_seed_and_epoch():
    assert mined(last_rank=9, negatives=3) == mined(last_rank=9, negatives=3)
    draws = {tuple(mined(last_rank=9, negatives=3, seed=seed, epoch=epoch)) for seed in (1, 2) for epoch in (1, 2)}
    assert len(draws) > 1
