"""AdamW over weights by name, with the arithmetic and the saved state of torch's."""

import math
from collections.abc import Mapping

import mlx.core as mx
import numpy as np

from holdfast.engine.checkpoint import Tensors

Weights = dict[str, mx.array]

_BETA1, _BETA2, _EPSILON = 0.9, 0.999, 1e-8


class NamedAdamW:
    """The optimizer of some weights. Biases and norms get no weight decay, as is usual."""

    def __init__(self, weight_decay: float):
        self._weight_decay = weight_decay
        self._steps: dict[str, int] = {}
        self._means: Weights = {}
        self._squares: Weights = {}

    def updated(self, weights: Mapping[str, mx.array], gradients: Mapping[str, mx.array], rate: float) -> Weights:
        """The weights after one step."""
        return {name: self._updated(name, weights[name], gradient, rate) for name, gradient in gradients.items()}

    def arrays(self) -> list[mx.array]:
        """Everything it holds, to be evaluated with the weights."""
        return [*self._means.values(), *self._squares.values()]

    def tensors(self) -> Tensors:
        """Its state by weight, as torch's optimizer names it."""
        found: Tensors = {}
        for name, step in self._steps.items():
            found[f"{name}/step"] = np.array(step, dtype=np.float32)
            found[f"{name}/exp_avg"], found[f"{name}/exp_avg_sq"] = self._means[name], self._squares[name]
        return found

    def load_tensors(self, tensors: Tensors) -> None:
        """Restore it."""
        for name in [key.removesuffix("/step") for key in tensors if key.endswith("/step")]:
            self._steps[name] = int(tensors[f"{name}/step"].item())
            self._means[name], self._squares[name] = tensors[f"{name}/exp_avg"], tensors[f"{name}/exp_avg_sq"]

    def _updated(self, name: str, weight: mx.array, gradient: mx.array, rate: float) -> mx.array:
        step = self._steps.get(name, 0) + 1
        mean, square = self._means.get(name, mx.zeros_like(weight)), self._squares.get(name, mx.zeros_like(weight))
        mean = mean + (1 - _BETA1) * (gradient - mean)
        square = _BETA2 * square + (1 - _BETA2) * gradient * gradient
        self._steps[name], self._means[name], self._squares[name] = step, mean, square
        decay = self._weight_decay if weight.ndim >= 2 else 0.0
        spread = mx.sqrt(square) / math.sqrt(1 - _BETA2**step) + _EPSILON
        return weight * (1 - rate * decay) - (rate / (1 - _BETA1**step)) * mean / spread


def norm_of(gradients: Mapping[str, mx.array]) -> mx.array:
    """The norm of all gradients as one vector."""
    return mx.sqrt(sum((_summed(mx.square(gradient)) for gradient in gradients.values()), mx.array(0.0)))


def _summed(x: mx.array) -> mx.array:
    """The sum, axis by axis: MLX adds one value after the other on a CPU, and 10 million squares were 2% too small."""
    for _ in range(x.ndim):
        x = mx.sum(x, axis=-1)
    return x


def clipped(gradients: Mapping[str, mx.array], norm: float, max_norm: float) -> Weights:
    """Gradients scaled so that their norm is at most this; 0 leaves them."""
    scale = min(1.0, max_norm / (norm + 1e-6)) if max_norm > 0 else 1.0
    return {name: gradient * scale for name, gradient in gradients.items()} if scale < 1 else dict(gradients)
