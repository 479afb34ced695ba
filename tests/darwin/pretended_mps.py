"""A pretended Apple GPU: tensors that say `mps` and compute on the CPU, where an op without an MPS kernel fails.

What PyTorch's MPS backend refuses is refused here: ops whose entry in PyTorch's own table names no kernel for MPS, and
float64. New memory holds NaN, and with `beta=0` the first operand is read all the same, as in torch 2.13.0
(pytorch#187521). Everything else is recorded: shapes, copies to the device, and waits for it.

It cannot show speed, nor a kernel that computes something else than the CPU's.
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import torchgen
import yaml
from torch.__future__ import set_swap_module_params_on_conversion as swap_on_conversion
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing
from torch.utils._pytree import tree_leaves, tree_map_only

DEVICE = torch.device("mps:0")
_RUNS_ANYWHERE = {
    "MPS",
    "CompositeImplicitAutograd",
    "CompositeExplicitAutograd",
    "CompositeExplicitAutogradNonFunctional",
}
_NEW_MEMORY = ("empty", "new_empty")


@dataclass
class DeviceLog:
    """What the device was asked to do, in total and in each step."""

    step: int = 0
    shapes: set[tuple[Any, ...]] = field(default_factory=set)  # an op with the shapes and types of its tensors
    new_shapes: Counter[int] = field(default_factory=Counter)  # by step
    copies: Counter[int] = field(default_factory=Counter)  # to the device, each waited for
    waits: Counter[int] = field(default_factory=Counter)  # for a value of the device
    asynchronous_copies: int = 0

    def saw(self, op: str, tensors: list[torch.Tensor]) -> None:
        """Record one call."""
        call = (op, *((tuple(tensor.shape), tensor.dtype) for tensor in tensors))
        if call not in self.shapes:
            self.shapes.add(call)
            self.new_shapes[self.step] += 1


log = DeviceLog()
generator = torch.Generator()  # of the device: torch restores it nowhere by itself


@contextmanager
def pretended_mps() -> Iterator[DeviceLog]:
    """In this context `mps` is a device; its log is new."""
    log.__init__()  # type: ignore[misc]
    with ExitStack() as stack:
        # So that `module.to` keeps tied weights tied, as it does on a real device.
        stack.callback(swap_on_conversion, torch.__future__.get_swap_module_params_on_conversion())
        swap_on_conversion(True)
        # The log is of one thread.
        stack.callback(torch.autograd.set_multithreading_enabled, torch.autograd.is_multithreading_enabled())
        torch.autograd.set_multithreading_enabled(False)
        for name, function in (
            ("manual_seed", generator.manual_seed),
            ("get_rng_state", generator.get_state),
            ("set_rng_state", generator.set_state),
        ):
            stack.enter_context(patch.object(torch.mps, name, function))
        stack.enter_context(_DeviceArguments())
        stack.enter_context(_Dispatch())
        yield log


class MpsTensor(torch.Tensor):
    """A tensor on the pretended device. For PyTorch's C++ it is on the CPU, because this build of it has no MPS."""

    held: torch.Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, held: torch.Tensor) -> "MpsTensor":
        made = torch.Tensor._make_wrapper_subclass(
            cls,
            held.shape,
            strides=held.stride(),
            storage_offset=held.storage_offset(),
            dtype=held.dtype,
            layout=held.layout,
        )
        made.held = held
        return made

    @property
    def device(self) -> torch.device:
        return DEVICE

    @classmethod
    def __torch_dispatch__(cls, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _call(op, args, kwargs or {})


class _Dispatch(TorchDispatchMode):
    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _call(op, args, kwargs or {})


class _DeviceArguments(TorchFunctionMode):
    """Takes over the few functions that go to a device without passing the dispatcher."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        args, kwargs = tree_map_only((str, torch.device), _with_index, (args, kwargs or {}))
        if function in (torch.tensor, torch.as_tensor) and _is_mps(kwargs.get("device")):
            del kwargs["device"]
            return function(*args, **kwargs).to(DEVICE)
        if function in (torch.Tensor.cpu, torch.Tensor.to) and isinstance(args[0], MpsTensor):
            target = "cpu" if function is torch.Tensor.cpu else kwargs.get("device", args[1] if len(args) > 1 else None)
            if isinstance(target, str | torch.device) and not _is_mps(target):
                log.waits[log.step] += not kwargs.get("non_blocking")
                return args[0].held.detach().clone()
        if function is torch.nn.functional.scaled_dot_product_attention and isinstance(args[0], MpsTensor):
            function = _attention  # the kernel that would be chosen for the CPU is not MPS's
        return function(*args, **kwargs)


def _attention(q: Any, k: Any, v: Any, attn_mask: Any = None, dropout_p: float = 0.0, **kwargs: Any) -> Any:
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        attn_mask = torch.zeros_like(attn_mask, dtype=q.dtype).masked_fill(~attn_mask, -torch.inf)
    return torch.ops.aten._scaled_dot_product_attention_math(q, k, v, attn_mask, dropout_p, **kwargs)[0]


def _with_index(device: Any) -> Any:
    return DEVICE if device in ("mps", torch.device("mps")) else device


def _call(op: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
    is_from_mps = any(isinstance(tensor, MpsTensor) for tensor in tensors)
    target = kwargs.get("device")
    is_to_mps = _is_mps(target) or (is_from_mps and target is None)
    name = str(op).removeprefix("aten.").removesuffix(".default")
    if not (is_from_mps or is_to_mps):
        return op(*args, **kwargs)
    _record(name, tensors, is_from_mps, is_to_mps, kwargs)
    if not _has_kernel(name):
        raise NotImplementedError(f"The operator 'aten::{name}' is not currently implemented for the MPS device")
    here = tree_map_only(MpsTensor, lambda tensor: tensor.held, (args, kwargs))
    if target is not None:
        here[1]["device"] = torch.device("cpu")
    if name.startswith("bernoulli"):
        here[1]["generator"] = generator
    found = _beta_0(name, *here) if here[1].get("beta", 1) == 0 else op(*here[0], **here[1])
    if name.startswith(_NEW_MEMORY) and found.is_floating_point():
        found.fill_(torch.nan)
    if not is_to_mps or name == "_local_scalar_dense":
        return found
    made = tree_map_only(torch.Tensor, _on_mps, found)
    return return_and_correct_aliasing(op, args, kwargs, made) if is_from_mps else made


def _record(name: str, tensors: list[torch.Tensor], is_from_mps: bool, is_to_mps: bool, kwargs: dict[str, Any]) -> None:
    log.saw(name, tensors)
    is_copy = name == "_to_copy" or name.startswith("copy_")
    is_upload = is_copy and is_to_mps and not all(isinstance(tensor, MpsTensor) for tensor in tensors)
    if is_upload and kwargs.get("non_blocking"):
        log.asynchronous_copies += 1
    elif is_upload:
        log.copies[log.step] += 1
    is_download = is_copy and is_from_mps and not is_to_mps and not kwargs.get("non_blocking")
    if name == "_local_scalar_dense" or is_download:
        log.waits[log.step] += 1


def _on_mps(tensor: torch.Tensor) -> MpsTensor:
    if tensor.dtype == torch.float64:
        raise TypeError("Cannot convert a MPS Tensor to float64 dtype as the MPS framework doesn't support float64.")
    return tensor if isinstance(tensor, MpsTensor) else MpsTensor(tensor)


def _beta_0(name: str, args: Any, kwargs: dict[str, Any]) -> torch.Tensor:
    """The first operand times zero is added all the same: NaN stays NaN."""
    out = kwargs.pop("out", None)
    given, *factors = args
    product = torch.matmul(*factors) * kwargs.get("alpha", 1) + given * 0.0
    return product if out is None else out.copy_(product)


def _is_mps(device: Any) -> bool:
    return device is not None and torch.device(device).type == "mps"


@cache
def _table() -> dict[str, dict[str, Any]]:
    path = Path(torchgen.__file__).parent / "packaged/ATen/native/native_functions.yaml"
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    return {entry["func"].partition("(")[0]: entry for entry in yaml.load(path.read_text(), loader)}


@cache
def _has_kernel(name: str) -> bool:
    """Whether PyTorch's table names a kernel for MPS, or one that is made of other ops."""
    entry = _table().get(name)
    if entry is None:
        return False
    keys = {key.strip() for group in entry.get("dispatch", {}) for key in group.split(",")}
    if delegate := entry.get("structured_delegate"):
        return bool(keys & _RUNS_ANYWHERE) or _has_kernel(delegate)
    return bool(keys & _RUNS_ANYWHERE) or "dispatch" not in entry
