"""The arithmetic of one encoder layer over packed texts, forward and backward, in the subset that TorchScript reads.

Scripted, it runs without the GIL, so that two threads can run it at the same time. Where TorchScript is missing the
same functions run as they are.

N tokens, R of them in the output (all, or the first of each text), H hidden, I inside the feed-forward part, h heads,
d values per head. Of one text: T tokens, Q queries. P attention weights of all texts, text after text.
"""

import warnings
from collections.abc import Callable

import torch
from torch import Tensor


def layer_forward(
    x_NH: Tensor,
    first_B: Tensor | None,
    weights: list[Tensor],
    lengths: list[int],
    heads: int,
    eps: float,
    kept: list[Tensor],
    grow: list[float],
) -> list[Tensor]:
    """The layer's output, followed by the tensors that the backward pass needs.

    `kept` and `grow` are the dropout masks (a byte per value) and scales of the attention weights, the attention
    output and the feed-forward output. Empty without dropout.
    """
    wq, bq, wk, bk, wv, bv, wo, bo, g1, c1, wi, bi, wd, bd, g2, c2 = weights
    x_RH = x_NH if first_B is None else x_NH.index_select(0, first_B)
    q_RH = torch.mm(x_RH, wq.t()).add_(bq).mul_((wq.size(0) // heads) ** -0.5)
    k_NH, v_NH = torch.mm(x_NH, wk.t()).add_(bk), torch.mm(x_NH, wv.t()).add_(bv)
    seen_RH, weights_P = _attend(q_RH, k_NH, v_NH, lengths, heads, kept, grow)
    sum_RH = torch.mm(seen_RH, wo.t()).add_(bo)
    if len(kept) > 0:
        sum_RH.mul_(kept[1].to(torch.float32).mul_(grow[1]))
    sum_RH.add_(x_RH)
    y_RH, mean_1, rstd_1 = torch.native_layer_norm(sum_RH, [g1.size(0)], g1, c1, eps)
    z_RI = torch.mm(y_RH, wi.t()).add_(bi)
    a_RI = torch.ops.aten.gelu(z_RI)
    end_RH = torch.mm(a_RI, wd.t()).add_(bd)
    if len(kept) > 0:
        end_RH.mul_(kept[2].to(torch.float32).mul_(grow[2]))
    end_RH.add_(y_RH)
    out_RH, mean_2, rstd_2 = torch.native_layer_norm(end_RH, [g2.size(0)], g2, c2, eps)
    # fmt: off
    return [
        out_RH, x_NH, x_RH, q_RH, k_NH, v_NH, weights_P, seen_RH, sum_RH, mean_1, rstd_1,
        y_RH, z_RI, a_RI, end_RH, mean_2, rstd_2,
    ]
    # fmt: on


def layer_backward(
    d_out_RH: Tensor,
    saved: list[Tensor],
    first_B: Tensor | None,
    weights: list[Tensor],
    lengths: list[int],
    heads: int,
    kept: list[Tensor],
    grow: list[float],
) -> list[Tensor]:
    """The gradient of the input, followed by those of the weights."""
    x_NH, x_RH, q_RH, k_NH, v_NH, weights_P, seen_RH, sum_RH, mean_1, rstd_1 = saved[:10]
    y_RH, z_RI, a_RI, end_RH, mean_2, rstd_2 = saved[10:]
    wq, wk, wv, wo, g1, c1, wi, wd, g2, c2 = weights
    norm_back = torch.ops.aten.native_layer_norm_backward
    all_three = [True, True, True]
    d_end_RH, d_g2, d_c2 = norm_back(d_out_RH, end_RH, [g2.size(0)], mean_2, rstd_2, g2, c2, all_three)
    d_fed_RH = d_end_RH
    if len(kept) > 0:
        d_fed_RH = kept[2].to(torch.float32).mul_(grow[2]).mul_(d_end_RH)
    d_wd, d_bd = torch.mm(d_fed_RH.t(), a_RI), d_fed_RH.sum(0)
    d_z_RI = torch.ops.aten.gelu_backward(torch.mm(d_fed_RH, wd), z_RI)
    d_wi, d_bi = torch.mm(d_z_RI.t(), y_RH), d_z_RI.sum(0)
    d_y_RH = d_end_RH.addmm_(d_z_RI, wi)
    d_sum_RH, d_g1, d_c1 = norm_back(d_y_RH, sum_RH, [g1.size(0)], mean_1, rstd_1, g1, c1, all_three)
    d_attended_RH = d_sum_RH
    if len(kept) > 0:
        d_attended_RH = kept[1].to(torch.float32).mul_(grow[1]).mul_(d_sum_RH)
    d_wo, d_bo = torch.mm(d_attended_RH.t(), seen_RH), d_attended_RH.sum(0)
    d_seen_RH = torch.mm(d_attended_RH, wo)
    d_q_RH, d_k_NH, d_v_NH = _attend_back(d_seen_RH, q_RH, k_NH, v_NH, weights_P, lengths, heads, kept, grow)
    d_q_RH.mul_((wq.size(0) // heads) ** -0.5)
    d_x_RH = d_sum_RH.addmm_(d_q_RH, wq)
    if first_B is None:
        d_x_NH = d_x_RH.addmm_(d_k_NH, wk)
    else:
        d_x_NH = torch.mm(d_k_NH, wk).index_add_(0, first_B, d_x_RH)
    d_x_NH.addmm_(d_v_NH, wv)
    d_wq, d_wk, d_wv = torch.mm(d_q_RH.t(), x_RH), torch.mm(d_k_NH.t(), x_NH), torch.mm(d_v_NH.t(), x_NH)
    d_bq, d_bk, d_bv = d_q_RH.sum(0), d_k_NH.sum(0), d_v_NH.sum(0)
    # fmt: off
    return [
        d_x_NH, d_wq, d_bq, d_wk, d_bk, d_wv, d_bv, d_wo, d_bo, d_g1, d_c1,
        d_wi, d_bi, d_wd, d_bd, d_g2, d_c2,
    ]
    # fmt: on


def _attend(
    q_RH: Tensor, k_NH: Tensor, v_NH: Tensor, lengths: list[int], heads: int, kept: list[Tensor], grow: list[float]
) -> tuple[Tensor, Tensor]:
    """The attention output, and the weights before dropout."""
    is_first_only = q_RH.size(0) < k_NH.size(0)
    size = 0
    for length in lengths:
        size += heads * length * (1 if is_first_only else length)
    seen_RH, weights_P = torch.empty_like(q_RH), q_RH.new_empty([size])
    q_hRd, seen_hRd = _by_head(q_RH, heads), _by_head(seen_RH, heads)
    # MKL multiplies small matrices two to three times faster when neither is transposed.
    k_hdN, v_hNd = k_NH.t().contiguous().view(heads, -1, k_NH.size(0)), _by_head(v_NH, heads)
    used_P = weights_P
    if len(kept) > 0:
        used_P = kept[0].to(torch.float32).mul_(grow[0])
    r, n, p = 0, 0, 0
    for tokens in lengths:
        queries = 1 if is_first_only else tokens
        size = heads * queries * tokens
        scores_hQT = torch.bmm(q_hRd.narrow(1, r, queries), k_hdN.narrow(2, n, tokens))
        weights_hQT = weights_P.narrow(0, p, size).view(heads, queries, tokens)
        torch.softmax(scores_hQT, -1, out=weights_hQT)
        if len(kept) > 0:
            weights_hQT = used_P.narrow(0, p, size).view(heads, queries, tokens).mul_(weights_hQT)
        seen_hRd.narrow(1, r, queries).copy_(torch.bmm(weights_hQT, v_hNd.narrow(1, n, tokens)))
        r, n, p = r + queries, n + tokens, p + size
    return seen_RH, weights_P


def _attend_back(
    d_seen_RH: Tensor,
    q_RH: Tensor,
    k_NH: Tensor,
    v_NH: Tensor,
    weights_P: Tensor,
    lengths: list[int],
    heads: int,
    kept: list[Tensor],
    grow: list[float],
) -> tuple[Tensor, Tensor, Tensor]:
    is_first_only = q_RH.size(0) < k_NH.size(0)
    d_q_RH, d_k_NH, d_v_NH = torch.empty_like(q_RH), torch.empty_like(k_NH), torch.empty_like(v_NH)
    d_q_hRd, d_k_hNd, d_v_hNd = _by_head(d_q_RH, heads), _by_head(d_k_NH, heads), _by_head(d_v_NH, heads)
    d_seen_hRd, q_hRd, k_hNd = _by_head(d_seen_RH, heads), _by_head(q_RH, heads), _by_head(k_NH, heads)
    v_hdN = v_NH.t().contiguous().view(heads, -1, v_NH.size(0))
    factor_P = weights_P
    if len(kept) > 0:
        factor_P = kept[0].to(torch.float32).mul_(grow[0])
    r, n, p = 0, 0, 0
    for tokens in lengths:
        queries = 1 if is_first_only else tokens
        size = heads * queries * tokens
        d_seen_hQd = d_seen_hRd.narrow(1, r, queries)
        weights_hQT = weights_P.narrow(0, p, size).view(heads, queries, tokens)
        used_hQT = weights_hQT
        d_weights_hQT = torch.bmm(d_seen_hQd, v_hdN.narrow(2, n, tokens))
        if len(kept) > 0:
            factor_hQT = factor_P.narrow(0, p, size).view(heads, queries, tokens)
            d_weights_hQT.mul_(factor_hQT)
            used_hQT = factor_hQT.mul_(weights_hQT)
        d_v_hNd.narrow(1, n, tokens).copy_(torch.bmm(used_hQT.transpose(1, 2), d_seen_hQd))
        d_scores_hQT = torch._softmax_backward_data(d_weights_hQT, weights_hQT, -1, torch.float32)
        d_q_hRd.narrow(1, r, queries).copy_(torch.bmm(d_scores_hQT, k_hNd.narrow(1, n, tokens)))
        d_k_hNd.narrow(1, n, tokens).copy_(torch.bmm(d_scores_hQT.transpose(1, 2), q_hRd.narrow(1, r, queries)))
        r, n, p = r + queries, n + tokens, p + size
    return d_q_RH, d_k_NH, d_v_NH


def _by_head(x_NH: Tensor, heads: int) -> Tensor:
    """(h, N, d), as a view."""
    return x_NH.view(x_NH.size(0), heads, -1).transpose(0, 1)


def scripted(function: Callable[..., list[Tensor]]) -> Callable[..., list[Tensor]]:
    """The function compiled by TorchScript, if this Python still has it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # deprecated; missing from Python 3.14 on
        try:
            made: Callable[..., list[Tensor]] = torch.jit.script(function)
        except Exception:
            return function
        return made
