"""Dropout whose draws are a pure function of (seed, step, place in the model, place in the step).

torch's own generator gives each call what comes next in its stream, so the same example is thinned out differently
when a step is split into other micro-batches. Here every token of a step has its own draws: a run resumed, or forced
to smaller micro-batches, drops the same values. It is also faster on a CPU (0.4 ms against 3 for 593 x 384 values).
"""

from threading import local

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from holdfast.engine.order import Indices

_ALL = 1 << 62  # rows: as many as there are
_BITS = 1 << 16
_PERIOD = 1 << 128
# Sites, and examples of a site, lie this far apart in the generator's period. Odd and without pattern, since places
# a power of two apart give draws that are alike.
_SITE = 0xD1342543DE82EF95_A24BAED4963EE407
_EXAMPLE = 0x9FB21C651E98DF25_9E3779B97F4A7C15


Runs = list[tuple[int, int]]  # neighbours: the first, and how many


class Draws(local):
    """The draws of one run, and where the texts at hand stand: which step, and which rows of it.

    Each thread stands where it was told to.
    """

    def __init__(self, seed: int):
        self._seed, self._step = seed, -1
        self._source, self._position = np.random.PCG64DXSM(0), 0
        self._tokens: Runs = [(0, _ALL)]
        self._texts: Runs = [(0, _ALL)]
        self.rows_are_texts = False  # of what is dropped from now on; tokens otherwise

    def at(self, step: int, first_token: int = 0, first_example: int = 0) -> None:
        """Say where the next forward pass stands: at neighbours, from these on."""
        self._go_to(step, [(first_token, _ALL)], [(first_example, _ALL)])

    def at_part(self, step: int, places: Indices, first_tokens: Indices, lengths: Indices) -> None:
        """The same for some texts of a step: which they are, and where their tokens lie."""
        self._go_to(step, _runs(first_tokens, lengths), _runs(places, np.ones_like(places)))

    def keep(self, site: int, rows: int, columns: int, p: float, *, by_text: bool) -> Tensor:
        """For each value of the rows at hand 1 to keep it, 0 to drop it. A row of a site always gives the same."""
        runs = self._texts if by_text else self._tokens
        if len(runs) == 1:
            return self.keep_rows(site, rows, runs[0][0], columns, p)
        return torch.cat([self.keep_rows(site, count, first, columns, p) for first, count in runs])

    def keep_rows(self, site: int, rows: int, first_row: int, columns: int, p: float) -> Tensor:
        """The same for neighbours, by number."""
        words = -(-columns // 4)
        draws = self._draw(site * _SITE + first_row * words, rows * words)
        return self._keep(draws.reshape(rows, words * 4)[:, :columns], p)

    def keep_block(self, site: int, texts: list[int], shape: tuple[int, int, int], p: float) -> Tensor:
        """The same for the attention of some texts, each with (heads, asking, tokens) weights of its own."""
        heads, asking, tokens = shape
        size = heads * asking * tokens
        draws = np.empty((len(texts), size), dtype=np.uint16)
        for row, text in zip(draws, texts, strict=True):
            place = site * _SITE + (_at(self._texts, text) + 1) * _EXAMPLE
            row[:] = self._draw(place, -(-size // 4))[:size]
        return self._keep(draws.reshape(len(texts) * heads, asking, tokens), p)

    def keep_texts(self, site: int, sizes: list[int], p: float) -> Tensor:
        """The same for so many values of each text at hand, one text after the other."""
        draws, end = np.empty(sum(sizes), dtype=np.uint16), 0
        for text, size in enumerate(sizes):
            place = site * _SITE + (_at(self._texts, text) + 1) * _EXAMPLE
            draws[end : end + size] = self._draw(place, -(-size // 4))[:size]
            end += size
        return self._keep(draws, p)

    def _go_to(self, step: int, tokens: Runs, texts: Runs) -> None:
        if step != self._step:
            self._source = np.random.PCG64DXSM(np.random.SeedSequence([self._seed, step]))
            self._step, self._position = step, 0
        self._tokens, self._texts = tokens, texts

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
        self.p, self.site, self.draws = p, site, draws

    def forward(self, x: Tensor) -> Tensor:
        """Drop values of a packed (1, tokens, hidden) tensor by token, of any other by example."""
        if not self.training or self.p == 0:
            return x
        is_packed = x.ndim == 3 and x.shape[0] == 1
        rows = x.shape[1] if is_packed else x.shape[0]
        by_token = is_packed and not self.draws.rows_are_texts
        keep = self.draws.keep(self.site, rows, x.numel() // rows, self.p, by_text=not by_token)
        kept: Tensor = _Keep.apply(x, keep.view(x.shape).to(x.device), 1 / (1 - self.p))
        return kept


class _Keep(torch.autograd.Function):
    """x * keep * scale, holding on to one byte a value. Products, as torch.where is six times as slow on a CPU."""

    @staticmethod
    def forward(ctx, x, keep, scale):  # type: ignore[no-untyped-def]  # torch gives a context without a type
        ctx.save_for_backward(keep)
        ctx.scale = scale
        return keep.to(x.dtype).mul_(scale).mul_(x)

    @staticmethod
    def backward(ctx, gradient):  # type: ignore[no-untyped-def]  # torch gives a context without a type
        (keep,) = ctx.saved_tensors
        return keep.to(gradient.dtype).mul_(ctx.scale).mul_(gradient), None, None


def _runs(first: Indices, counts: Indices) -> Runs:
    """Join what lies side by side."""
    runs: Runs = []
    for begin, count in zip(first.tolist(), counts.tolist(), strict=True):
        if runs and sum(runs[-1]) == begin:
            runs[-1] = (runs[-1][0], runs[-1][1] + count)
        else:
            runs.append((begin, count))
    return runs


def _at(runs: Runs, number: int) -> int:
    """The row that is the so-many-th of these."""
    for first, count in runs:
        if number < count:
            return first + number
        number -= count
    raise IndexError(number)


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
