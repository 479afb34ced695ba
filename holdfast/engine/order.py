"""Which examples step *s* sees: a pure function of (seed, s). Resume needs no loader state and skips nothing."""

import numpy as np
from numpy.typing import NDArray

Indices = NDArray[np.int64]


class Order:
    """The order of the training examples.

    `pool_batches` above 1 draws each step's examples from a pool of that many batches sorted by length, and then
    shuffles the steps, so that a step's texts are alike in length. It changes which examples share a step, so it is
    chosen at the start, recorded in the settings, and never changed by a rung.
    """

    def __init__(self, lengths: NDArray[np.integer], batch_size: int, seed: int, pool_batches: int = 1):
        self._lengths, self._batch_size, self._seed, self._pool_batches = lengths, batch_size, seed, pool_batches
        self.steps_per_epoch = -(-len(lengths) // batch_size)
        self._epoch = -1
        self._batches: list[Indices] = []

    def examples(self, step: int) -> Indices:
        """The examples of one optimizer step, counted from 0 over all epochs."""
        epoch, within = divmod(step, self.steps_per_epoch)
        if epoch != self._epoch:
            self._batches, self._epoch = self._batches_of(epoch), epoch
        return self._batches[within]

    def _batches_of(self, epoch: int) -> list[Indices]:
        draws = generator(self._seed, "order", epoch)
        shuffled = draws.permutation(len(self._lengths))
        if self._pool_batches <= 1:
            return _cut(shuffled, self._batch_size)
        pools = _cut(shuffled, self._batch_size * self._pool_batches)
        batches = [
            batch
            for pool in pools
            for batch in _cut(pool[np.argsort(self._lengths[pool], kind="stable")], self._batch_size)
        ]
        return [batches[at] for at in draws.permutation(len(batches))]


def generator(seed: int, purpose: str, *numbers: int) -> np.random.Generator:
    """A stream of draws that belongs to a purpose, such as the order of one epoch, and to nothing else."""
    return np.random.Generator(np.random.Philox(np.random.SeedSequence([seed, *purpose.encode(), *numbers])))


def step_seed(seed: int, step: int) -> int:
    """A seed for generators of a card that draw by themselves: of (seed, step) and nothing else."""
    return int(np.random.SeedSequence([seed, step]).generate_state(1, np.uint64)[0] >> np.uint64(1))


def _cut(indices: Indices, size: int) -> list[Indices]:
    return [indices[start : start + size] for start in range(0, len(indices), size)]
