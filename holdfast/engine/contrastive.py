"""InfoNCE over all texts of a step, and its gradient in bounded memory.

In-batch negatives tie the texts of a step together, so accumulating smaller batches would learn something else. But
the gradient of the embeddings needs only the embeddings. So they are first computed without a graph, the loss is taken
over the whole step, and each micro-batch is embedded again to carry its share of the gradient to the weights
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
    """The mean over queries: each must score its own passage above all passages that may count as negatives.

    With `symmetric` each passage must also score its own query above the other queries.
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
    threads: GradientThreads,
    batches: Sequence[Sequence[Part]],
    embed: Callable[[Part], Tensor],
    loss_of: Callable[[Tensor], Tensor],
    ranks: Ranks = ALONE,
) -> Tensor:
    """Add the gradient of a loss over the embeddings of all batches, each in parts for the threads; return the loss.

    `embed` must return the same each time it is called with a part, including dropout. The last batch keeps its graph
    from the first pass, so a step that fits in one batch is embedded once. Each rank has its own batches, and `loss_of`
    gathers the embeddings of all ranks.
    """

    def embed_without_graph(part: Part) -> Tensor:
        with torch.no_grad():
            return embed(part)

    def embed_own() -> tuple[list[list[Tensor]], list[Tensor]]:
        return [threads.map(embed_without_graph, parts) for parts in batches[:-1]], threads.map(embed, batches[-1])

    found, last = ranks.independently(embed_own)
    embeddings = torch.cat([part.detach() for parts in (*found, last) for part in parts]).requires_grad_()
    loss = loss_of(embeddings)
    loss.backward()
    assert embeddings.grad is not None
    sizes = [len(part) for parts in (*found, last) for part in parts]
    gradients = list(embeddings.grad.split(sizes))
    threads.add_gradients(list(zip(last, gradients[-len(last) :], strict=True)), lambda output: output)
    for parts in batches[:-1]:
        own, gradients = gradients[: len(parts)], gradients[len(parts) :]
        threads.add_gradients(list(zip(parts, own, strict=True)), lambda given: (embed(given[0]), given[1]))
    return loss.detach()
