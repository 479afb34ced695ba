from contextlib import contextmanager

import numpy as np
import pytest
import torch
from torch import nn

from holdfast.engine.batches import share, split_step
from holdfast.engine.fast.thread_pool import GradientThreads


def test_shares_are_about_equal_and_complete():
    draws = np.random.default_rng(0)
    for workers in (1, 2, 3, 4):
        lengths = np.sort(np.exp(draws.normal(3.5, 0.46, 16)).astype(int))
        shares = share(lengths, workers)
        assert sorted(np.concatenate(shares)) == list(range(16))
        assert max(lengths[some].sum() for some in shares) <= 1.1 * lengths.sum() / workers


def test_large_share_is_split_between_threads():
    assert [some.tolist() for some in share(np.array([10, 500]), 2)] == [[0, 1]]


def test_shares_do_not_exceed_items():
    assert len(share(np.array([20, 20]), 4)) == 2


def test_parts_hold_positions_in_the_step():
    lengths, examples = np.array([5, 3, 9, 4, 7, 6]), np.array([4, 0, 2, 5, 1, 3])
    for workers in (1, 2):
        seen = []
        for parts in split_step(examples, lengths, 20, workers):
            for part in parts:
                seen += zip(part.places, part.first_tokens, lengths[part.examples], strict=True)
        assert [tuple(map(int, one)) for one in sorted(seen)] == [
            *((0, 0, 3), (1, 3, 4), (2, 7, 5), (3, 12, 6), (4, 18, 7), (5, 25, 9))
        ]


def sum_over(model: nn.Module, parts: list[torch.Tensor], workers: int) -> list[torch.Tensor]:
    @contextmanager
    def loss_of(part):
        yield model(part).pow(2).sum()

    model.zero_grad()
    GradientThreads(model, workers).backward(parts, loss_of)
    return [weight.grad.clone() for weight in model.parameters()]


def test_two_threads_match_the_gradient_of_one():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(40, 80), nn.Tanh(), nn.Linear(80, 3))
    rows = torch.randn(64, 40)
    whole, shared = sum_over(model, [rows], 1), sum_over(model, list(rows.split(30)), 2)
    for one, other in zip(whole, shared, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)
    for _ in range(5):
        assert all(map(torch.equal, shared, sum_over(model, list(rows.split(30)), 2)))


def test_failing_worker_thread_is_reported():
    model = nn.Linear(4, 2)

    @contextmanager
    def loss_of(part):
        yield model(part).sum()

    with pytest.raises(RuntimeError, match="shapes"):
        GradientThreads(model, 2).backward([torch.ones(3, 4), torch.ones(3, 5)], loss_of)
