"""Watches libraries load, and runs our hook for a module right after the module's own code.

The preload imports no library itself: a finder in front of `sys.meta_path` sees every name. For a name it knows, it
lets the other finders find the module and adds one call after the module's code; the module keeps its loader.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
from types import ModuleType

from holdfast_preload import env_changes, event_writer
from holdfast_preload.beat_page import BEAT, NUMBERS

TYPE_CHECKING = False  # typing's own would cost every interpreter 5 ms
if TYPE_CHECKING:
    from typing import Any, Callable

if TYPE_CHECKING:  # imported by name when their library loads; listed here for readers and the type checker
    from holdfast_preload import (
        huggingface_hooks,
        lightning_hooks,
        loader_hooks,
        mlx_hooks,
        mlx_lm_hooks,
        torch_hooks,
        trainer_changes,
        trainer_hooks,
    )

    HOOKS = (huggingface_hooks, lightning_hooks, loader_hooks, mlx_hooks, mlx_lm_hooks, torch_hooks)
    TRAINER_HOOKS = (trainer_changes, trainer_hooks)

# module -> "file:function" of this package, called with the module after it has loaded
AFTER = {
    "torch": "torch_hooks:after_torch",
    "torch.optim.optimizer": "torch_hooks:after_optimizer",
    "torch.nn.modules.module": "torch_hooks:after_module",
    "torch.serialization": "torch_hooks:after_serialization",
    "torch.backends.mps": "torch_hooks:after_mps",
    "torch.accelerator": "torch_hooks:after_accelerator",
    "torch.amp.autocast_mode": "torch_hooks:after_autocast",
    "torch.amp.grad_scaler": "torch_hooks:after_grad_scaler",
    "torch._dynamo.convert_frame": "torch_hooks:after_convert_frame",
    "torch.utils.data.dataloader": "loader_hooks:after_dataloader",
    "torch.utils.data._utils.signal_handling": "loader_hooks:after_signal_handling",
    "safetensors.torch": "huggingface_hooks:after_safetensors",
    "huggingface_hub.file_download": "huggingface_hooks:after_file_download",
    "huggingface_hub._snapshot_download": "huggingface_hooks:after_snapshot_download",
    "huggingface_hub.hf_api": "huggingface_hooks:after_hf_api",
    "datasets.arrow_dataset": "huggingface_hooks:after_arrow_dataset",
    "datasets.load": "huggingface_hooks:after_datasets_load",
    "transformers.tokenization_utils_base": "huggingface_hooks:after_tokenization",
    "transformers.modeling_utils": "huggingface_hooks:after_modeling",
    "accelerate.accelerator": "huggingface_hooks:after_accelerator",
    "transformers.training_args": "trainer_changes:after_training_args",
    "transformers.trainer": "trainer_hooks:after_trainer",
    "sentence_transformers.base.trainer": "trainer_changes:after_sentence_trainer",
    "sentence_transformers.trainer": "trainer_changes:after_sentence_trainer",
    "sentence_transformers.cross_encoder.trainer": "trainer_changes:after_sentence_trainer",
    "mlx.core": "mlx_hooks:after_core",
    "mlx.optimizers.optimizers": "mlx_hooks:after_optimizers",
    "mlx.nn.layers.base": "mlx_hooks:after_module",
    "mlx_lm.utils": "mlx_lm_hooks:after_utils",
    "mlx_lm.tuner.trainer": "mlx_lm_hooks:after_trainer",
    "lightning.pytorch.trainer.trainer": "lightning_hooks:after_trainer",
    "pytorch_lightning.trainer.trainer": "lightning_hooks:after_trainer",
    "lightning.pytorch.loops.evaluation_loop": "lightning_hooks:after_evaluation_loop",
    "pytorch_lightning.loops.evaluation_loop": "lightning_hooks:after_evaluation_loop",
}
HEAVY = {
    *("torch", "transformers", "datasets", "accelerate", "peft", "trl", "sentence_transformers", "tokenizers"),
    *("lightning", "pytorch_lightning", "tensorflow", "jax", "sklearn", "pandas", "pyarrow", "torchvision", "faiss"),
    *("huggingface_hub", "bitsandbytes", "deepspeed", "unsloth", "scipy", "numba", "timm", "diffusers"),
    *("mlx.core", "mlx_lm", "mlx_vlm"),
}


class ImportHook:
    """A finder that finds nothing itself."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """Find a module we have a hook for with the other finders, and add the hook to its loading."""
        if name not in AFTER and name not in HEAVY:
            return None
        for finder in sys.meta_path:
            find_spec = getattr(finder, "find_spec", None)
            if finder is self or find_spec is None:
                continue
            spec = find_spec(name, path, target)
            if spec is not None:
                _add_hook(name, spec.loader)
                return spec
        return None


def arm() -> None:
    """Watch imports from now on; run the hooks of modules that are already loaded."""
    sys.meta_path.insert(0, ImportHook())
    for name in [name for name in AFTER if name in sys.modules]:
        run_hook(name, sys.modules[name])


def run_hook(name: str, module: ModuleType) -> None:
    """Call our hook for a module that has just loaded."""
    file, _, function = AFTER[name].partition(":")
    try:
        hook: Callable[[ModuleType], None] = getattr(importlib.import_module(f"holdfast_preload.{file}"), function)
        hook(module)
    except Exception as error:  # an unknown version of the library: less is watched, nothing fails
        event_writer.write("hook_failed", where=name, error=repr(error))


def _add_hook(name: str, loader: Any) -> None:
    execute = getattr(loader, "exec_module", None)
    if execute is None:
        return

    def exec_module(module: ModuleType) -> None:
        with contextlib.suppress(AttributeError):
            del loader.exec_module
        before = BEAT.enter(NUMBERS["import"]) if name in HEAVY else -1
        try:
            execute(module)
        finally:
            BEAT.leave(before)
        env_changes.apply_again()
        if name in AFTER:
            run_hook(name, module)

    # Python drops frames with this name from tracebacks, so a failed import reads the same as without us.
    code = exec_module.__code__
    exec_module.__code__ = code.replace(
        co_filename="<frozen importlib._bootstrap>", co_name="_call_with_frames_removed"
    )
    try:
        loader.exec_module = exec_module
    except AttributeError:  # a loader without room for it
        event_writer.write_once("not_observed", module=name, because=f"loader {type(loader).__name__}")
