"""The weights that a run starts with where the base model has none: heads and adapters. numpy only.

They are a pure function of the seed and the weight's name, so that every backend starts from the same model.
"""

import numpy as np
from numpy.typing import NDArray

from holdfast.engine.data_order import generator

Weight = NDArray[np.float32]


def normal_weight(seed: int, name: str, shape: tuple[int, ...], std: float) -> Weight:
    """A new matrix of a head: normally distributed. A bias starts at zero."""
    if len(shape) < 2:
        return np.zeros(shape, dtype=np.float32)
    return (generator(seed, f"new {name}").standard_normal(shape) * std).astype(np.float32)


def uniform_weight(seed: int, name: str, shape: tuple[int, ...]) -> Weight:
    """The first matrix of a LoRA adapter, as torch starts a linear layer: uniform up to 1 / sqrt(inputs)."""
    limit = 1 / np.sqrt(shape[1])
    return generator(seed, f"new {name}").uniform(-limit, limit, shape).astype(np.float32)
