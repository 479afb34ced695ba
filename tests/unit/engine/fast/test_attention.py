import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from holdfast.engine.fast.attention import Attend, AttentionSpan, PackedLayout

LENGTHS, HEADS, SIZE = [3, 17, 8, 5, 8, 21], 2, 4
CPU = torch.device("cpu")


def rows(count: int) -> torch.Tensor:
    return torch.randn(count * HEADS, SIZE, dtype=torch.double, requires_grad=True)


def plain(q, k, v, sight):
    """Text by text, by torch's own attention."""
    seen, at = [], 0
    is_first_only = len(q) == len(LENGTHS) * HEADS
    for text, length in enumerate(LENGTHS):
        queries = slice(text, text + 1) if is_first_only else slice(at, at + length)
        parts = [
            x.view(-1, HEADS, SIZE)[here].transpose(0, 1)
            for x, here in ((q, queries), *((y, slice(at, at + length)) for y in (k, v)))
        ]
        seen.append(
            scaled_dot_product_attention(
                *parts, scale=0.7, attn_mask=None if is_first_only else sight.seen(length, CPU)
            ).transpose(0, 1)
        )
        at += length
    return torch.cat(seen).reshape(-1, SIZE)


SIGHTS = {
    "all": AttentionSpan(),
    "causal": AttentionSpan(is_causal=True),
    "near": AttentionSpan(reach=4),
    "near, causal": AttentionSpan(True, 4),
}


@pytest.mark.parametrize("sight", SIGHTS.values(), ids=SIGHTS)
def test_blocks_match_each_text_alone(sight):
    torch.manual_seed(0)
    inputs = [rows(sum(LENGTHS)) for _ in range(3)]
    layout = PackedLayout(LENGTHS, HEADS, CPU)
    found, wanted = Attend.apply(*inputs, layout, 0.7, sight, None, 1.0), plain(*inputs, sight)
    torch.testing.assert_close(found, wanted)
    direction = torch.randn_like(wanted)
    torch.testing.assert_close(
        torch.autograd.grad(found, inputs, direction), torch.autograd.grad(wanted, inputs, direction)
    )


def test_first_token_attention_matches_full_attention():
    torch.manual_seed(0)
    q, k, v = rows(len(LENGTHS)), rows(sum(LENGTHS)), rows(sum(LENGTHS))
    found = Attend.apply(q, k, v, PackedLayout(LENGTHS, HEADS, CPU, first_only=True), 0.7, AttentionSpan(), None, 1.0)
    torch.testing.assert_close(found, plain(q, k, v, AttentionSpan()))


@pytest.mark.parametrize("first_only", [False, True])
def test_attention_gradient_with_dropout_matches_numerical_one(first_only):
    torch.manual_seed(0)
    inputs = [rows(len(LENGTHS) if first_only else sum(LENGTHS)), rows(sum(LENGTHS)), rows(sum(LENGTHS))]
    layout = PackedLayout(LENGTHS, HEADS, CPU, first_only=first_only)
    keep = [
        (torch.rand(len(block.texts) * HEADS, block.queries, block.tokens) > 0.3).to(torch.uint8)
        for block in layout.blocks
    ]
    assert torch.autograd.gradcheck(
        lambda *given: Attend.apply(*given, layout, 0.7, AttentionSpan(), keep, 1.4), inputs
    )
