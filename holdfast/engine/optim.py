"""The optimizer of torch: AdamW, clipping, and its state in checkpoints."""

from collections.abc import Iterable

import torch
from torch import Tensor
from torch.nn import Module, Parameter

from holdfast.engine.attempt_settings import AttemptSettings
from holdfast.engine.distributed_ranks import full_tensor, is_sharded
from holdfast.engine.fast.threaded_adamw import ThreadedAdamW


def make_optimizer(model: Module, settings: AttemptSettings) -> torch.optim.AdamW:
    """Fused AdamW. Biases and norms get no weight decay, as is usual."""
    trained = [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]
    groups = [
        {"params": [p for _, p in trained if p.ndim >= 2], "weight_decay": settings.weight_decay},
        {"params": [p for _, p in trained if p.ndim < 2], "weight_decay": 0.0},
    ]
    # The rate is a tensor so that a captured or compiled step sees each step's value.
    rate = torch.tensor(settings.lr, dtype=torch.float32, device=settings.device)
    groups = [group for group in groups if group["params"]]
    if settings.device == "cpu" and not settings.shard:
        return ThreadedAdamW(groups, rate, settings.worker_threads)
    return torch.optim.AdamW(groups, lr=rate, fused=True, capturable=settings.is_on_cuda)


def clip_gradients(parameters: Iterable[Parameter], max_norm: float) -> Tensor:
    """Scale all gradients so that their norm is at most this; return the norm, on the device."""
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    norm = full_tensor(torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients))))
    if max_norm > 0:
        torch._foreach_mul_(gradients, torch.clamp(max_norm / (norm + 1e-6), max=1.0))
    return norm


def clip_in_step(optimizer: ThreadedAdamW, max_norm: float) -> Tensor:
    """The same, but the optimizer's next step does the scaling, which saves a pass over all gradients."""
    norm = optimizer.norm()
    excess = (norm + 1e-6) / max_norm if max_norm > 0 else torch.zeros(())
    is_over = bool(excess > 1)
    optimizer.grad_scale, optimizer.found_inf = (excess, torch.zeros(())) if is_over else (None, None)
    return norm


def optimizer_tensors(model: Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The optimizer's state by parameter name, as checkpoints hold it."""
    return {
        f"{name}/{key}": value
        for name, parameter in model.named_parameters()
        if parameter in optimizer.state
        for key, value in optimizer.state[parameter].items()
    }


def optimizer_bytes(model: Module) -> int:
    """The size of the optimizer's state, even before the first step."""
    return sum(2 * parameter.nbytes for parameter in model.parameters() if parameter.requires_grad)


def load_optimizer_tensors(model: Module, optimizer: torch.optim.Optimizer, tensors: dict[str, Tensor]) -> None:
    """Restore a checkpoint's state, copied from the file one tensor at a time."""
    for name, parameter in model.named_parameters():
        state = {
            key: tensors.pop(f"{name}/{key}") for key in ("step", "exp_avg", "exp_avg_sq") if f"{name}/{key}" in tensors
        }
        if state:
            optimizer.state[parameter] = {
                key: value if is_sharded(value) else torch.empty_like(value, device=parameter.device).copy_(value)
                for key, value in state.items()
            }
    if tensors:
        raise ValueError(f"the checkpoint's optimizer has parameters that this model lacks: {sorted(tensors)[:3]}")
