"""Some values of each gradient, to compare the gradients of two devices or backends without holding both."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

_MOST_VALUES = 4096  # of each tensor
_LEAST_SHARE = 1e-3  # of the whole gradient: tensors with less, such as a key's bias, are rounding noise
_FILE = "gradient.npz"

Sample = Mapping[str, NDArray[np.float32]]


def sampled(gradient: NDArray[np.float32]) -> NDArray[np.float32]:
    """Values of one gradient, evenly spread."""
    values = gradient.reshape(-1)
    return values[:: -(-len(values) // _MOST_VALUES)].copy()


def write_sample(folder: Path, sample: Sample) -> None:
    """Keep the sample that others are compared with."""
    arrays: dict[str, Any] = dict(sample)  # the types of `savez` mistake a mapping for its option `allow_pickle`
    np.savez(folder / _FILE, **arrays)


def read_sample(folder: Path) -> Sample | None:
    """The sample that others are compared with; None where the reference has not computed one."""
    try:
        with np.load(folder / _FILE, allow_pickle=False) as file:
            return {name: file[name] for name in file.files}
    except (OSError, ValueError):
        return None


def largest_difference(expected: Sample, found: Sample) -> float:
    """How far the worst tensor is from the expected one, relative to its size; infinite if they cannot be compared."""
    if expected.keys() != found.keys() or any(expected[name].shape != found[name].shape for name in expected):
        return float("inf")
    norms = {name: float(np.linalg.norm(values)) for name, values in expected.items()}
    least = _LEAST_SHARE * float(np.linalg.norm(list(norms.values())))
    off = [float(np.linalg.norm(found[name] - expected[name])) / max(norms[name], least, 1e-30) for name in expected]
    worst = float(np.max(off, initial=0.0))  # NaN if one is
    return worst if np.isfinite(worst) else float("inf")
