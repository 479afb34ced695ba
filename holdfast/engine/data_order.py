"""Which examples step *s* sees: a pure function of (seed, s). Resuming needs no loader state and skips no batches."""

import numpy as np
from numpy.typing import NDArray

Indices = NDArray[np.int64]


class DataOrder:
    """The order of the training examples.

    With `pool_batches` above 1, each step's examples come from a pool of that many batches sorted by length, and the
    steps are then shuffled, so that the texts of a step have similar lengths. This changes which examples share a
    step, so it is chosen at the start, recorded in the settings, and never changed by the fallback ladder.
    """

    def __init__(self, lengths: NDArray[np.integer], batch_size: int, seed: int, pool_batches: int = 1):
        self._lengths, self._batch_size, self._seed, self._pool_batches = lengths, batch_size, seed, pool_batches
        self.steps_per_epoch = -(-len(lengths) // batch_size)
        self._epoch = -1
        self._batches: list[Indices] = []

    def examples(self, step: int) -> Indices:
        """The examples of one optimizer step; steps are counted from 0 over all epochs."""
        epoch, within = divmod(step, self.steps_per_epoch)
        if epoch != self._epoch:
            self._batches, self._epoch = self._batches_of(epoch), epoch
        return self._batches[within]

    def _batches_of(self, epoch: int) -> list[Indices]:
        rng = generator(self._seed, "order", epoch)
        shuffled = rng.permutation(len(self._lengths))
        if self._pool_batches <= 1:
            return _cut(shuffled, self._batch_size)
        pools = _cut(shuffled, self._batch_size * self._pool_batches)
        batches = [
            batch
            for pool in pools
            for batch in _cut(pool[np.argsort(self._lengths[pool], kind="stable")], self._batch_size)
        ]
        return [batches[at] for at in rng.permutation(len(batches))]


def generator(seed: int, purpose: str, *numbers: int) -> np.random.Generator:
    """A random generator for one purpose, such as the order of one epoch; its stream depends on nothing else."""
    return np.random.Generator(np.random.Philox(np.random.SeedSequence([seed, *purpose.encode(), *numbers])))


def step_seed(seed: int, step: int) -> int:
    """A seed for a GPU's own generator: a pure function of (seed, step)."""
    return int(np.random.SeedSequence([seed, step]).generate_state(1, np.uint64)[0] >> np.uint64(1))


def _cut(indices: Indices, size: int) -> list[Indices]:
    return [indices[start : start + size] for start in range(0, len(indices), size)]
