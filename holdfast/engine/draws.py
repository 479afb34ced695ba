"""Dropout whose draws are a pure function of (seed, step, place in the model, place in the step).

torch's own generator gives each call what comes next in its stream, so the same example is thinned out differently
when a step is split into other micro-batches. Here every token of a step has its own draws: a run resumed, or forced
to smaller micro-batches, drops the same values. It is also faster on a CPU (0.4 ms against 3 for 593 x 384 values).
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

_BITS = 1 << 16
_PERIOD = 1 << 128
# Sites, and examples of a site, lie this far apart in the generator's period. Odd and without pattern, since places
# a power of two apart give draws that are alike.
_SITE = 0xD1342543DE82EF95_A24BAED4963EE407
_EXAMPLE = 0x9FB21C651E98DF25_9E3779B97F4A7C15


class Draws:
    """The draws of one run, and where the current micro-batch stands: which step, and which part of it."""

    def __init__(self, seed: int):
        self._seed, self._step = seed, -1
        self._source, self._position = np.random.PCG64DXSM(0), 0
        self.first_token, self.first_example = 0, 0  # of this micro-batch, counted in the step
        self.rows_are_texts = False  # of what is dropped from now on; tokens otherwise

    def at(self, step: int, first_token: int = 0, first_example: int = 0) -> None:
        """Say where the next forward pass stands."""
        if step != self._step:
            self._source = np.random.PCG64DXSM(np.random.SeedSequence([self._seed, step]))
            self._step, self._position = step, 0
        self.first_token, self.first_example = first_token, first_example

    def keep_rows(self, site: int, rows: int, first_row: int, columns: int, p: float) -> Tensor:
        """For each value of these rows 1 to keep it, 0 to drop it. A row of a site always gives the same."""
        words = -(-columns // 4)
        draws = self._draw(site * _SITE + first_row * words, rows * words)
        return self._keep(draws.reshape(rows, words * 4)[:, :columns], p)

    def keep_block(self, site: int, texts: list[int], shape: tuple[int, int, int], p: float) -> Tensor:
        """The same for the attention of some texts, each with (heads, asking, tokens) weights of its own."""
        heads, asking, tokens = shape
        size = heads * asking * tokens
        draws = np.empty((len(texts), size), dtype=np.uint16)
        for row, text in zip(draws, texts, strict=True):
            place = site * _SITE + (self.first_example + text + 1) * _EXAMPLE
            row[:] = self._draw(place, -(-size // 4))[:size]
        return self._keep(draws.reshape(len(texts) * heads, asking, tokens), p)

    def _draw(self, place: int, words: int) -> NDArray[np.uint16]:
        """16-bit draws from a place of the step's period, four to a word."""
        self._source.advance((place - self._position) % _PERIOD)
        self._position = place + words
        drawn: NDArray[np.uint16] = self._source.random_raw(words).view(np.uint16)
        return drawn

    def _keep(self, draws: NDArray[np.uint16], p: float) -> Tensor:
        return torch.from_numpy((draws >= round(p * _BITS)).view(np.uint8))


class StepDropout(nn.Module):
    """Stands where the model had `nn.Dropout`, and draws from `Draws`."""

    def __init__(self, p: float, site: int, draws: Draws):
        super().__init__()
        self.p, self._site, self._draws = p, site, draws

    def forward(self, x: Tensor) -> Tensor:
        """Drop values of a packed (1, tokens, hidden) tensor by token, of any other by example."""
        if not self.training or self.p == 0:
            return x
        is_packed = x.ndim == 3 and x.shape[0] == 1
        rows = x.shape[1] if is_packed else x.shape[0]
        by_token = is_packed and not self._draws.rows_are_texts
        first = self._draws.first_token if by_token else self._draws.first_example
        keep = self._draws.keep_rows(self._site, rows, first, x.numel() // rows, self.p)
        kept: Tensor = _Keep.apply(x, keep.view(x.shape).to(x.device), 1 / (1 - self.p))
        return kept


class _Keep(torch.autograd.Function):
    """x * keep * scale, holding on to one byte a value. Products, as torch.where is six times as slow on a CPU."""

    @staticmethod
    def forward(ctx, x, keep, scale):  # type: ignore[no-untyped-def]
        ctx.save_for_backward(keep)
        ctx.scale = scale
        return keep.to(x.dtype).mul_(scale).mul_(x)

    @staticmethod
    def backward(ctx, gradient):  # type: ignore[no-untyped-def]
        (keep,) = ctx.saved_tensors
        return keep.to(gradient.dtype).mul_(ctx.scale).mul_(gradient), None, None


def replace_dropout(model: nn.Module, draws: Draws) -> int:
    """Put our dropout in place of every `nn.Dropout`; give how many there were."""
    sites = [
        (parent, name, child)
        for parent in model.modules()
        for name, child in parent.named_children()
        if isinstance(child, nn.Dropout)
    ]
    for site, part in enumerate(model.modules()):
        part.__dict__["draw_site"] = site  # for the dropout inside attention, which has no module of its own
    for site, (parent, name, child) in enumerate(sites):
        setattr(parent, name, StepDropout(child.p, site, draws))
    return len(sites)
