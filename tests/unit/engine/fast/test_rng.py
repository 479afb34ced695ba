from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from torch import nn

from holdfast.engine.fast.rng import DropoutRng, StepDropout, replace_dropout


def test_dropout_of_a_row_ignores_other_rows():
    draws = DropoutRng(seed=1)
    draws.at(step=5)
    whole = draws.keep_rows(site=2, rows=50, first_row=0, columns=37, p=0.2)
    part = draws.keep_rows(site=2, rows=10, first_row=20, columns=37, p=0.2)
    assert torch.equal(whole[20:30], part)


def test_steps_sites_and_examples_have_different_dropout():
    draws = DropoutRng(seed=1)
    draws.at(step=5)
    first = draws.keep_rows(2, 10, 0, 64, 0.5)
    others = [
        draws.keep_rows(2, 10, 10, 64, 0.5),
        draws.keep_rows(3, 10, 0, 64, 0.5),
        draws.keep_block(2, [0], (5, 10, 64), 0.5)[0].view(10, 64),
    ]
    draws.at(step=6)
    others.append(draws.keep_rows(2, 10, 0, 64, 0.5))
    assert all(not torch.equal(first, other) for other in others)


def test_attention_dropout_ignores_other_texts():
    draws = DropoutRng(seed=1)
    draws.at(step=5)
    whole = draws.keep_block(site=2, texts=[0, 1, 4], shape=(3, 8, 8), p=0.2)
    draws.at(step=5, first_example=4)
    assert torch.equal(draws.keep_block(site=2, texts=[0], shape=(3, 8, 8), p=0.2), whole[6:])


def test_dropout_preserves_rate_and_mean():
    draws = DropoutRng(seed=1)
    dropout = StepDropout(0.1, 0, draws)
    draws.at(step=0)
    dropped = dropout(torch.ones(1, 2000, 100))
    assert abs((dropped == 0).float().mean() - 0.1) < 0.01
    assert abs(dropped.mean() - 1) < 0.01


def test_nothing_is_dropped_in_evaluation():
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5))
    assert replace_dropout(model, DropoutRng(0)) == 1
    model.eval()
    x = torch.ones(1, 3, 4)
    assert torch.equal(model(x), model[0](x))


def test_dropout_of_a_text_ignores_its_position():
    draws, lengths = DropoutRng(seed=1), np.array([3, 4, 5, 6])
    draws.at(step=5)
    tokens = draws.keep(2, 18, 37, 0.2, by_text=False).split(lengths.tolist())
    texts = draws.keep(3, 4, 37, 0.2, by_text=True)
    attention = draws.keep_texts(4, [30, 40, 50, 60], 0.2).split([30, 40, 50, 60])
    some = np.array([0, 1, 3])
    draws.at_part(5, some, np.array([0, 3, 12]), lengths[some])
    assert torch.equal(draws.keep(2, 13, 37, 0.2, by_text=False), torch.cat([tokens[at] for at in some]))
    assert torch.equal(draws.keep(3, 3, 37, 0.2, by_text=True), texts[some])
    assert torch.equal(draws.keep_texts(4, [30, 40, 60], 0.2), torch.cat([attention[at] for at in some]))


def test_each_thread_has_its_own_dropout():
    draws = DropoutRng(seed=1)
    draws.at(step=5)
    wanted = draws.keep_rows(2, 10, 0, 64, 0.5)

    def elsewhere() -> torch.Tensor:
        draws.at(step=6)
        draws.keep_rows(2, 10, 0, 64, 0.5)
        draws.at(step=5)
        return draws.keep_rows(2, 10, 0, 64, 0.5)

    with ThreadPoolExecutor(1) as pool:
        found = pool.submit(elsewhere).result()
    assert torch.equal(found, wanted)
    assert torch.equal(draws.keep_rows(2, 10, 0, 64, 0.5), wanted)
