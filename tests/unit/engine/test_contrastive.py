import math

import torch
from torch import nn

from holdfast.engine.contrastive import cached_backward, info_nce
from holdfast.engine.fast.thread_pool import GradientThreads


def by_hand(scores, target, allowed, scale):
    """The mean over queries of -log(own / all allowed)."""
    losses = []
    for row, own in enumerate(target):
        weights = [math.exp(scale * scores[row][at]) for at in range(len(scores[row])) if allowed[row][at]]
        losses.append(-math.log(math.exp(scale * scores[row][own]) / sum(weights)))
    return sum(losses) / len(losses)


def test_info_nce_matches_hand_calculation():
    torch.manual_seed(0)
    queries, passages = torch.randn(3, 4), torch.randn(5, 4)
    target = torch.tensor([0, 3, 0])
    allowed = torch.tensor([[1, 1, 1, 0, 1], [1, 1, 0, 1, 1], [1, 0, 0, 1, 1]]).bool()
    scores = (queries @ passages.T).tolist()
    forward = by_hand(scores, target.tolist(), allowed.tolist(), 2.0)
    loss = info_nce(queries, passages, target, allowed, torch.tensor(2.0), symmetric=False)
    torch.testing.assert_close(loss, torch.tensor(forward))
    # Backward: passage 0 has the queries 0 and 2, which are not wrong for each other; query 1 may be wrong for it.
    back = [[scores[query][own] for query in range(3)] for own in target.tolist()]
    may_be = [[True, True, False], [False, True, True], [False, True, True]]
    backward = by_hand(back, [0, 1, 2], may_be, 2.0)
    loss = info_nce(queries, passages, target, allowed, torch.tensor(2.0), symmetric=True)
    torch.testing.assert_close(loss, torch.tensor((forward + backward) / 2))


def test_cached_gradient_equals_one_big_batch():
    torch.manual_seed(0)
    tower = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 8)).double()
    scale = nn.Parameter(torch.tensor(3.0).double())
    texts = torch.randn(24, 6).double()
    calls = []

    def embed(batch):
        calls.append(len(batch))
        return nn.functional.normalize(tower(batch), dim=-1)

    def loss_of(whole):
        queries, passages = whole.split([10, 14])
        return info_nce(queries, passages, torch.arange(10), torch.ones(10, 14).bool(), scale, symmetric=True)

    loss_of(embed(texts)).backward()
    plain = [p.grad.clone() for p in (*tower.parameters(), scale)]
    for size in (24, 11, 7, 1):
        tower.zero_grad()
        scale.grad = None
        calls.clear()
        batches = texts.split(size)
        cached_backward(GradientThreads(tower, 1), [[batch] for batch in batches], embed, loss_of)
        for p, expected in zip((*tower.parameters(), scale), plain, strict=True):
            torch.testing.assert_close(p.grad, expected, rtol=1e-12, atol=1e-14)
        assert len(calls) == 2 * len(batches) - 1  # one batch is embedded once
    tower.zero_grad()
    scale.grad = None
    batches = [[*batch.split(4)] for batch in texts.split(8)]
    cached_backward(GradientThreads(tower, 2), batches, embed, loss_of)
    for p, expected in zip((*tower.parameters(), scale), plain, strict=True):
        torch.testing.assert_close(p.grad, expected, rtol=1e-12, atol=1e-14)
