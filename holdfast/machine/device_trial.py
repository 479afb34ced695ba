"""A short-lived child that does one training step on a device and compares it with the CPU's in double precision.

    python -P holdfast/machine/device_trial.py DEVICE LIMIT_SECONDS

It imports nothing of Holdfast, so it runs under any Python that has torch. Each line it prints is a JSON object with
its next action or a result; after a crash or a hang, the last line says how far it got. The step contains operations
that were wrong on some device before: causal attention on permuted tensors, a linear layer with a transposed weight, an
expanded input, and an optimizer that must really change the weights. It also contains what the engine itself computes
with: attention within the texts of a row, rows selected by index, means by a matrix product, and the fused optimizer.
"""

import faulthandler
import json
import os
import sys
import time
import warnings
from typing import Any

_LOSS_TOLERANCE = 1e-3  # float32 against float64 gives about 1e-6; a wrong kernel gives far more than this
_GRADIENT_TOLERANCE = 1e-2
_HALF_TOLERANCE = 5e-2

# B batch, T tokens, D width, H heads, F inner width, V vocabulary
_B, _T, _D, _H, _F, _V = 4, 48, 128, 2, 256, 97


def main(device: str, limit_seconds: float) -> None:
    """Test one device and print the result."""
    _no_core_file()
    _end_with_parent()
    faulthandler.enable()
    # Prints all stacks and ends the process, even while a driver call holds the interpreter or the parent is gone.
    faulthandler.dump_traceback_later(limit_seconds, exit=True)
    try:
        _say(doing="import torch")
        import torch

        _say(doing="the reference step on the CPU")
        reference = _train_step(torch, "cpu", torch.float64)
        _say(doing=f"a training step on {device}")
        started = time.perf_counter()
        trial = _train_step(torch, device, torch.float32)
        seconds = time.perf_counter() - started
        _say(doing=f"attention in half precision on {device}")
        half = _half_precision_faults(torch, device)
    except Exception as error:
        _say(outcome="error", detail=_one_line(error))
        return
    faults = _faults(trial, reference) + half
    detail = "; ".join(faults) or f"loss {trial['loss']:.4f} and gradients as in double precision"
    _say(outcome="differs" if faults else "agrees", detail=detail, seconds=round(seconds, 3))
    if device == "cpu":
        _list_devices(torch)


def _end_with_parent() -> None:
    """On Linux, end together with the parent process instead of waiting for the limit."""
    if sys.platform == "linux":
        import ctypes
        import signal

        pr_set_pdeathsig = 1
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)


def _train_step(torch: Any, device: str, dtype: Any) -> dict[str, Any]:
    """One step with fixed weights and tokens: loss, gradients, and the loss after the optimizer step."""
    generator = torch.Generator().manual_seed(0)

    def weight(*shape: int) -> Any:
        values = torch.randn(*shape, generator=generator, dtype=torch.float64) * shape[-1] ** -0.5
        return values.to(dtype).to(device).requires_grad_()

    weights = {
        "embedding": weight(_V, _D),
        "position": weight(1, _T, _D),
        "position_projection": weight(_D, _D),
        "attention_in": weight(3 * _D, _D),
        "attention_out": weight(_D, _D),
        "inner": weight(_F, _D),
        "outer_transposed": weight(_F, _D),
        "head": weight(_V, _D),
    }
    tokens = torch.randint(0, _V, (_B, _T + 1), generator=generator).to(device)
    rate = torch.tensor(1e-2, dtype=torch.float32, device=device)
    is_fused = dtype == torch.float32
    optimizer = torch.optim.AdamW(weights.values(), lr=rate if is_fused else 1e-2, fused=is_fused)
    loss = _loss(torch, weights, tokens)
    loss.backward()
    gradients = {name: tensor.grad.detach().to("cpu", torch.float64) for name, tensor in weights.items()}
    optimizer.step()
    with torch.no_grad():
        after = _loss(torch, weights, tokens)
    return {"loss": float(loss.detach()), "after": float(after), "gradients": gradients}


def _loss(torch: Any, weights: dict[str, Any], tokens: Any) -> Any:
    functional = torch.nn.functional
    positions = weights["position"].expand(_B, -1, -1)
    x = functional.embedding(tokens[:, :-1], weights["embedding"])
    x = x + functional.linear(positions, weights["position_projection"])
    mixed = functional.linear(functional.layer_norm(x, (_D,)), weights["attention_in"])
    query, key, value = (part.view(_B, _T, _H, _D // _H).transpose(1, 2) for part in mixed.chunk(3, dim=-1))
    seen = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
    x = x + functional.linear(seen.transpose(1, 2).reshape(_B, _T, _D), weights["attention_out"])
    inner = functional.gelu(functional.linear(functional.layer_norm(x, (_D,)), weights["inner"]))
    x = x + functional.linear(inner, weights["outer_transposed"].t())
    logits = functional.linear(functional.layer_norm(x, (_D,)), weights["head"])
    loss = functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
    return loss + _loss_of_rows(torch, x, query, key, value)


def _loss_of_rows(torch: Any, x: Any, query: Any, key: Any, value: Any) -> Any:
    """Two texts in each row, as the engine packs them: attention within each, then its first token and its mean."""
    text = torch.arange(_T, device=x.device) // (_T // 2)
    bias = torch.zeros(_T, _T, dtype=x.dtype, device=x.device).masked_fill_(text[:, None] != text, -torch.inf)
    weights = torch.softmax(torch.matmul(query, key.transpose(2, 3)) * (_D // _H) ** -0.5 + bias, -1)
    seen = (x + torch.matmul(weights, value).transpose(1, 2).reshape(_B, _T, _D)).flatten(0, 1)
    texts = torch.arange(2 * _B, device=x.device)
    firsts = seen.index_select(0, texts * (_T // 2))
    is_own = torch.arange(_B * _T, device=x.device) // (_T // 2) == texts[:, None]
    means = (is_own / is_own.sum(1, keepdim=True)).to(x.dtype) @ seen
    normal = torch.nn.functional.normalize
    return torch.nn.functional.cross_entropy(normal(firsts, dim=-1) @ normal(means, dim=-1).T, texts)


def _faults(trial: dict[str, Any], reference: dict[str, Any]) -> list[str]:
    """Differences from the reference beyond rounding."""
    faults: list[str] = []
    if not _is_near(trial["loss"], reference["loss"], _LOSS_TOLERANCE):
        faults.append(f"loss {trial['loss']:.4f}, but {reference['loss']:.4f} on the CPU")
    for name, expected in reference["gradients"].items():
        error = float((trial["gradients"][name] - expected).norm() / expected.norm())
        if not error < _GRADIENT_TOLERANCE:
            faults.append(f"the gradient of {name} is off by {error:.0%}")
    moved, expected_move = trial["after"] - trial["loss"], reference["after"] - reference["loss"]
    if not _is_near(moved, expected_move, 0.1):
        faults.append(f"after AdamW the loss moved by {moved:+.4f}, but by {expected_move:+.4f} on the CPU")
    return faults


def _half_precision_faults(torch: Any, device: str) -> list[str]:
    """Compare causal attention in bf16 and fp16; an unsupported type is not a fault."""
    faults: list[str] = []
    generator = torch.Generator().manual_seed(1)
    for dtype in (torch.bfloat16, torch.float16):
        query, key, value = (
            torch.randn(2, _H, _T, 64, generator=generator, dtype=torch.float64).to(dtype) for _ in range(3)
        )
        attention = torch.nn.functional.scaled_dot_product_attention
        expected = attention(query.double(), key.double(), value.double(), is_causal=True)
        try:
            found = attention(query.to(device), key.to(device), value.to(device), is_causal=True).cpu().double()
        except (RuntimeError, TypeError):
            continue
        error = float((found - expected).norm() / expected.norm())
        if not error < _HALF_TOLERANCE:
            faults.append(f"causal attention in {str(dtype).removeprefix('torch.')} is off by {error:.0%}")
    return faults


def _list_devices(torch: Any) -> None:
    """Print the accelerators that torch can use, and why one that it was built for cannot be used."""
    for kind in ("cuda", "mps", "xpu"):
        _say(doing=f"looking for {kind}", looking_for=kind)
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            try:
                names, reason = _devices_of(torch, kind)
            except Exception as error:
                names, reason = [], _one_line(error)
        said = [str(warning.message).strip().split("\n")[0] for warning in warned]
        _say(kind=kind, devices=names, reason=said[0] if said and reason else reason)


def _devices_of(torch: Any, kind: str) -> tuple[list[str], str]:
    if kind == "mps":
        if not torch.backends.mps.is_built():
            return [], ""
        return (["mps"], "") if torch.backends.mps.is_available() else ([], "torch says that MPS is not available")
    module = getattr(torch, kind, None)
    if module is None or not module.is_available():
        built = kind == "cuda" and (torch.version.cuda or torch.version.hip)
        hidden = os.environ.get("CUDA_VISIBLE_DEVICES", "all").strip() in (
            "",
            "-1",
        )  # by the user
        return [], "torch was built for GPUs but finds none" if built and not hidden else ""
    return [f"{kind}:{number}" for number in range(module.device_count())], ""


def _is_near(value: float, expected: float, tolerance: float) -> bool:
    return abs(value - expected) <= tolerance * abs(expected)  # False for NaN


def _one_line(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:300]}"


def _no_core_file() -> None:
    try:
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    except (ImportError, OSError, ValueError):
        pass


def _say(**words: object) -> None:
    print(json.dumps(words), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]) if len(sys.argv) > 2 else 60.0)
