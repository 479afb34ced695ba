"""InfoNCE over all texts of a step, and its gradient in bounded memory.

In-batch negatives tie the texts of a step together, so accumulating smaller batches would learn something else. The
gradient with respect to the embeddings needs only the embeddings; so they are made without a graph, the loss is taken
over the whole step, and each micro-batch is embedded once more to carry its share of the gradient to the weights
(GradCache, Gao et al. 2021, arXiv:2101.06983). The split into micro-batches does not change the gradient.

B queries, P passages, H size of an embedding.
"""

from collections.abc import Callable, Sequence
from typing import TypeVar

import torch
from torch import Tensor
from torch.nn import functional

from holdfast.engine.fast.thread_pool import GradientThreads
from holdfast.engine.ranks import ALONE, Ranks

Part = TypeVar("Part")


def info_nce(
    queries_BH: Tensor, passages_PH: Tensor, target_B: Tensor, allowed_BP: Tensor, scale: Tensor, symmetric: bool
) -> Tensor:
    """Each query must score its own passage above all that are allowed to count as wrong; the mean over queries.

    Symmetric: each passage must also score its own query above the other queries.
    """
    scores_BP = (scale * (queries_BH @ passages_PH.T)).masked_fill(~allowed_BP, -torch.inf)
    loss = functional.cross_entropy(scores_BP, target_B)
    if not symmetric:
        return loss
    back_BB = scores_BP.T[target_B]  # row: the passage of an example; column: a query
    is_shared_BB = (target_B[:, None] == target_B).fill_diagonal_(False)
    back_BB = back_BB.masked_fill(is_shared_BB, -torch.inf)
    return (loss + functional.cross_entropy(back_BB, torch.arange(len(target_B), device=target_B.device))) / 2


def cached_backward(
    threads_pool: GradientThreads,
    batches: Sequence[Sequence[Part]],
    embed: Callable[[Part], Tensor],
    loss_of: Callable[[Tensor], Tensor],
    ranks: Ranks = ALONE,
) -> Tensor:
    """Add the gradient of a loss over the embeddings of all batches, each in parts for the threads_pool; give the loss.

    `embed` must give the same each time it is called with a part, dropout included. The last batch keeps its graph
    from the first pass, so a step that fits in one is embedded once. Of several ranks each has batches of its own, and
    `loss_of` sees to it that the loss is taken over the embeddings of all.
    """

    def embed_plainly(part: Part) -> Tensor:
        with torch.no_grad():
            return embed(part)

    def embed_own() -> tuple[list[list[Tensor]], list[Tensor]]:
        return [threads_pool.map(embed_plainly, parts) for parts in batches[:-1]], threads_pool.map(embed, batches[-1])

    found, last = ranks.independently(embed_own)
    whole = torch.cat([part.detach() for parts in (*found, last) for part in parts]).requires_grad_()
    loss = loss_of(whole)
    loss.backward()
    assert whole.grad is not None
    sizes = [len(part) for parts in (*found, last) for part in parts]
    gradients = list(whole.grad.split(sizes))
    threads_pool.add_gradients(list(zip(last, gradients[-len(last) :], strict=True)), lambda made: made)
    for parts in batches[:-1]:
        own, gradients = gradients[: len(parts)], gradients[len(parts) :]
        threads_pool.add_gradients(list(zip(parts, own, strict=True)), lambda given: (embed(given[0]), given[1]))
    return loss.detach()
