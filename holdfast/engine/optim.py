"""The optimizer and its schedule. The learning rate is a pure function of the step."""

import math
from collections.abc import Iterable

import torch
from torch import Tensor
from torch.nn import Module, Parameter

from holdfast.engine.ranks import is_dealt_out, whole
from holdfast.engine.settings import Settings
from holdfast.engine.shared_adamw import SharedAdamW


def learning_rate(settings: Settings, step: int, steps: int) -> float:
    """Warm up, then go down to nothing over the rest, as the schedule says."""
    warmup = math.ceil(settings.warmup_ratio * steps)
    if step < warmup:
        return settings.lr * (step + 1) / warmup
    if settings.schedule == "constant":
        return settings.lr
    done = (step - warmup) / max(1, steps - warmup)
    if settings.schedule == "cosine":
        return settings.lr * 0.5 * (1 + math.cos(math.pi * done))
    return settings.lr * (1 - done)


def make_optimizer(model: Module, settings: Settings) -> torch.optim.AdamW:
    """AdamW in its fused form; biases and norms are not decayed, as is the custom."""
    trained = [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]
    groups = [
        {"params": [p for _, p in trained if p.ndim >= 2], "weight_decay": settings.weight_decay},
        {"params": [p for _, p in trained if p.ndim < 2], "weight_decay": 0.0},
    ]
    # The rate is a tensor so that a captured or compiled step sees each step's value.
    rate = torch.tensor(settings.lr, dtype=torch.float32, device=settings.device)
    groups = [group for group in groups if group["params"]]
    if settings.device == "cpu" and not settings.shard:
        return SharedAdamW(groups, rate, settings.hands)
    return torch.optim.AdamW(groups, lr=rate, fused=True, capturable=settings.is_on_card)


def clip_gradients(parameters: Iterable[Parameter], max_norm: float) -> Tensor:
    """Scale all gradients so that their norm is at most this; give the norm, on the device."""
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    norm = whole(torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients))))
    if max_norm > 0:
        torch._foreach_mul_(gradients, torch.clamp(max_norm / (norm + 1e-6), max=1.0))
    return norm


def clip_in_step(optimizer: SharedAdamW, max_norm: float) -> Tensor:
    """The same, but the optimizer's next step scales, which saves a pass over all gradients."""
    norm = optimizer.norm()
    excess = (norm + 1e-6) / max_norm if max_norm > 0 else torch.zeros(())
    is_over = bool(excess > 1)
    optimizer.grad_scale, optimizer.found_inf = (excess, torch.zeros(())) if is_over else (None, None)
    return norm


def optimizer_tensors(model: Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The optimizer's state by parameter name, as a checkpoint keeps it."""
    return {
        f"{name}/{key}": value
        for name, parameter in model.named_parameters()
        if parameter in optimizer.state
        for key, value in optimizer.state[parameter].items()
    }


def optimizer_bytes(model: Module) -> int:
    """How large the optimizer's state is, or will be."""
    return sum(2 * parameter.nbytes for parameter in model.parameters() if parameter.requires_grad)


def load_optimizer_tensors(model: Module, optimizer: torch.optim.Optimizer, tensors: dict[str, Tensor]) -> None:
    """Put a checkpoint's state back, copied from the file one tensor at a time."""
    for name, parameter in model.named_parameters():
        state = {
            key: tensors.pop(f"{name}/{key}") for key in ("step", "exp_avg", "exp_avg_sq") if f"{name}/{key}" in tensors
        }
        if state:
            optimizer.state[parameter] = {
                key: value if is_dealt_out(value) else torch.empty_like(value, device=parameter.device).copy_(value)
                for key, value in state.items()
            }
    if tensors:
        raise ValueError(f"the checkpoint's optimizer knows parameters that this model has not: {sorted(tensors)[:3]}")
