"""Optimizer steps as CUDA graphs: captured once for each size, then replayed.

A step of a small model is thousands of kernels of a few microseconds each; launching them one by one takes longer than
running them. Sizes are rounded up to buckets, so that few graphs serve all steps. Nothing waits for the GPU: losses
come back a step or two later, and a step whose loss or gradient is NaN or infinite does not change the weights.
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from holdfast.engine.attempt_settings import AttemptSettings
from holdfast.engine.fast.packing import Pack
from holdfast.engine.steps import StepResult

Arrays = Mapping[str, NDArray[np.int64]]

_BUCKET_TOKENS = 512
_RING = 4  # steps in flight; the host prepares the next ones meanwhile


def make_captured(task: Any, settings: AttemptSettings, optimizer: torch.optim.Optimizer) -> "CapturedSteps | None":
    """Steps as graphs, on CUDA, for tasks that support them."""
    step_loss = getattr(task, "step_loss", None) if getattr(task, "is_packed", True) else None
    if not (settings.is_on_cuda and settings.uses_device_rng) or not step_loss:
        return None
    torch.use_deterministic_algorithms(True)
    return CapturedSteps(step_loss, optimizer, settings.max_grad_norm, settings.device)


class CapturedSteps:
    """Runs steps as graphs. `compute` returns the step's loss from its arrays, which are on the GPU."""

    def __init__(
        self,
        compute: Callable[[Mapping[str, Tensor]], Tensor],
        optimizer: torch.optim.Optimizer,
        max_norm: float,
        device: str,
    ):
        self._compute, self._optimizer, self._max_norm, self._device = compute, optimizer, max_norm, device
        self._weights = [weight for group in optimizer.param_groups for weight in group["params"]]
        self._graphs: dict[tuple[int, ...], _Graph] = {}
        self._pool: Any = None  # one for all graphs, since they never run at the same time
        self._hold = torch.zeros((), device=device)  # 1 during a capture: the optimizer then changes nothing
        self._results = [torch.zeros(2, pin_memory=True) for _ in range(_RING)]
        self._in_flight: deque[tuple[int, int, torch.cuda.Event]] = deque()

    def run(self, step: int, arrays: Arrays, seed: int) -> Iterable[StepResult]:
        """Start one step; yield the results of earlier ones that have finished."""
        while len(self._in_flight) >= _RING:
            yield self._take()
        sizes = tuple(len(array) for array in arrays.values())
        if sizes not in self._graphs:
            yield from self.drain()
            self._graphs[sizes] = self._capture(arrays)
        graph = self._graphs[sizes]
        graph.batch.fill(arrays)
        torch.cuda.manual_seed(seed)
        graph.replay()
        slot = step % _RING
        self._results[slot].copy_(graph.result, non_blocking=True)
        done = torch.cuda.Event()
        done.record()
        self._in_flight.append((step, slot, done))
        while self._in_flight and self._in_flight[0][2].query():
            yield self._take()

    def drain(self) -> Iterable[StepResult]:
        """Wait for every step in flight."""
        while self._in_flight:
            yield self._take()

    def _take(self) -> StepResult:
        step, slot, done = self._in_flight.popleft()
        done.synchronize()
        loss, norm = self._results[slot].tolist()
        return StepResult(step, loss, norm)

    def _capture(self, arrays: Arrays) -> "_Graph":
        batch = StaticBatch({name: len(array) for name, array in arrays.items()}, self._device)
        batch.fill(arrays)
        self._hold.fill_(1.0)
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(2):  # so that libraries choose kernels and allocate before the capture
                self._step(batch)
        torch.cuda.current_stream().wait_stream(side)
        self._optimizer.zero_grad(set_to_none=True)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            result = self._step(batch)
        self._pool = graph.pool()
        self._hold.fill_(0.0)
        # A step too large for a graph runs without one, and must not see this capture's gradients and scales.
        self._optimizer.zero_grad(set_to_none=True)
        optimizer: Any = self._optimizer
        optimizer.grad_scale = optimizer.found_inf = None
        return _Graph(graph, batch, result)

    def _step(self, batch: "StaticBatch") -> Tensor:
        self._optimizer.zero_grad(set_to_none=True)
        loss = self._compute(batch.views)
        loss.backward()
        gradients = [weight.grad for weight in self._weights if weight.grad is not None]
        norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients)))
        # The fused optimizer divides by grad_scale and skips on found_inf, so clipping and skipping need no extra pass.
        optimizer: Any = self._optimizer
        optimizer.grad_scale = torch.clamp(norm / (self._max_norm or torch.inf), min=1.0)
        optimizer.found_inf = torch.maximum(self._hold, (~torch.isfinite(norm + loss.detach())).float())
        self._optimizer.step()
        return torch.stack([loss.detach().float(), norm.float()])


@dataclass(frozen=True, slots=True)
class _Graph:
    graph: torch.cuda.CUDAGraph
    batch: "StaticBatch"
    result: Tensor

    def replay(self) -> None:
        self.graph.replay()


class StaticBatch:
    """The arrays of a step at fixed addresses, filled by one copy from pinned memory."""

    def __init__(self, sizes: Mapping[str, int], device: str):
        self._sizes = dict(sizes)
        total = sum(sizes.values())
        self._device_array = torch.zeros(total, dtype=torch.int64, device=device)
        self._host = [torch.zeros(total, dtype=torch.int64, pin_memory=True) for _ in range(_RING)]
        self._copied = [torch.cuda.Event() for _ in range(_RING)]
        self._count = 0
        bounds = np.cumsum([0, *sizes.values()])
        self.views = {name: self._device_array[bounds[at] : bounds[at + 1]] for at, name in enumerate(sizes)}

    def fill(self, arrays: Arrays) -> None:
        """Copy the next step's arrays to the GPU; waits only if the copy of four steps ago is not done."""
        slot = self._count % _RING
        self._count += 1
        self._copied[slot].synchronize()
        np.concatenate(list(arrays.values()), out=self._host[slot].numpy())
        self._device_array.copy_(self._host[slot], non_blocking=True)
        self._copied[slot].record()


def bucket(tokens: int) -> int:
    """The bucket size for a step with this many tokens."""
    return -(-tokens // _BUCKET_TOKENS) * _BUCKET_TOKENS


def step_row(texts: Sequence[NDArray[Any]], offset: int = 0, idle: int = 0) -> dict[str, NDArray[np.int64]]:
    """A step's texts in one row, then `idle` texts of one token, then one text that fills the row up to a bucket.

    The idle texts and the filler are never read; they give the arrays of many steps the same size.
    """
    lengths = np.concatenate([[len(text) for text in texts], np.ones(idle)]).astype(np.int64)
    tokens = int(lengths.sum())
    filler = bucket(tokens) - tokens
    bounds = np.concatenate([[0], np.cumsum(lengths), [tokens + filler]])
    positions = np.arange(tokens) - np.repeat(bounds[:-2], lengths)
    return {
        "ids": np.pad(np.concatenate(texts).astype(np.int64), (0, idle + filler)),
        "positions": np.concatenate([positions, np.arange(filler) % int(lengths.max())]) + offset,
        "bounds": bounds,
    }


def row_pack(arrays: Mapping[str, Tensor], longest: int) -> Pack:
    """The texts of such arrays on the GPU, without the filler; none is longer than `longest`."""
    bounds = arrays["bounds"]
    longest = max(longest, bucket(1))  # the filler has less than a bucket
    return Pack(arrays["ids"][None], arrays["positions"][None], [], bounds[:-2], bounds.int(), longest)
