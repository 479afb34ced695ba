"""Looks on while libraries load, and runs our part for a module right after its own code has run.

Nothing is imported by us: a finder in front of `sys.meta_path` sees the names go by. For a name it knows, it lets the
other finders find the module and adds one call after its code; the module's loader stays the one it would have had.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
from types import ModuleType

from holdfast_preload import environment, events
from holdfast_preload.beat import BEAT, NUMBERS

TYPE_CHECKING = False  # typing's own would cost every interpreter 5 ms
if TYPE_CHECKING:
    from typing import Any, Callable

if TYPE_CHECKING:  # loaded by name when their library loads; here for the reader and the type checker
    from holdfast_preload import devices, lightning, loaders, precision, texts, torch_parts, trainer, trainer_rungs

    PARTS = (devices, lightning, loaders, precision, texts, torch_parts, trainer, trainer_rungs)

# module -> "file:function" of this package, called with the module
AFTER = {
    "torch": "torch_parts:after_torch",
    "torch.optim.optimizer": "torch_parts:after_optimizer",
    "torch.nn.modules.module": "torch_parts:after_module",
    "torch.serialization": "torch_parts:after_serialization",
    "torch.backends.mps": "devices:after_mps",
    "torch.accelerator": "devices:after_accelerator",
    "torch.amp.autocast_mode": "precision:after_autocast",
    "torch.amp.grad_scaler": "precision:after_grad_scaler",
    "torch._dynamo.convert_frame": "torch_parts:after_convert_frame",
    "torch.utils.data.dataloader": "loaders:after_dataloader",
    "torch.utils.data._utils.signal_handling": "loaders:after_signal_handling",
    "safetensors.torch": "texts:after_safetensors",
    "huggingface_hub.file_download": "texts:after_file_download",
    "huggingface_hub._snapshot_download": "texts:after_snapshot_download",
    "huggingface_hub.hf_api": "texts:after_hf_api",
    "datasets.arrow_dataset": "texts:after_arrow_dataset",
    "datasets.load": "texts:after_datasets_load",
    "transformers.tokenization_utils_base": "texts:after_tokenization",
    "transformers.modeling_utils": "texts:after_modeling",
    "accelerate.accelerator": "texts:after_accelerator",
    "transformers.training_args": "trainer_rungs:after_training_args",
    "transformers.trainer": "trainer:after_trainer",
    "sentence_transformers.base.trainer": "trainer_rungs:after_sentence_trainer",
    "sentence_transformers.trainer": "trainer_rungs:after_sentence_trainer",
    "sentence_transformers.cross_encoder.trainer": "trainer_rungs:after_sentence_trainer",
    "lightning.pytorch.trainer.trainer": "lightning:after_trainer",
    "pytorch_lightning.trainer.trainer": "lightning:after_trainer",
    "lightning.pytorch.loops.evaluation_loop": "lightning:after_evaluation_loop",
    "pytorch_lightning.loops.evaluation_loop": "lightning:after_evaluation_loop",
}
HEAVY = {
    *("torch", "transformers", "datasets", "accelerate", "peft", "trl", "sentence_transformers", "tokenizers"),
    *("lightning", "pytorch_lightning", "tensorflow", "jax", "sklearn", "pandas", "pyarrow", "torchvision", "faiss"),
    *("huggingface_hub", "bitsandbytes", "deepspeed", "unsloth", "scipy", "numba", "timm", "diffusers"),
}


class Onlooker:
    """A finder that finds nothing itself."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """Find a module we know by the other finders, and add our part to its loading."""
        if name not in AFTER and name not in HEAVY:
            return None
        for finder in sys.meta_path:
            find_spec = getattr(finder, "find_spec", None)
            if finder is self or find_spec is None:
                continue
            spec = find_spec(name, path, target)
            if spec is not None:
                _look_on(name, spec.loader)
                return spec
        return None


def arm() -> None:
    """Look on from now; what is loaded already gets its part at once."""
    sys.meta_path.insert(0, Onlooker())
    for name in [name for name in AFTER if name in sys.modules]:
        run_part(name, sys.modules[name])


def run_part(name: str, module: ModuleType) -> None:
    """Call our part for a module that has just loaded."""
    file, _, function = AFTER[name].partition(":")
    try:
        part: Callable[[ModuleType], None] = getattr(importlib.import_module(f"holdfast_preload.{file}"), function)
        part(module)
    except Exception as error:  # another version of the library: less is watched, nothing fails
        events.write("preload failed", where=name, error=repr(error))


def _look_on(name: str, loader: Any) -> None:
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
        environment.apply_again()
        if name in AFTER:
            run_part(name, module)

    # Python leaves frames of this name out of tracebacks, so a failed import reads as it would without us.
    code = exec_module.__code__
    exec_module.__code__ = code.replace(
        co_filename="<frozen importlib._bootstrap>", co_name="_call_with_frames_removed"
    )
    try:
        loader.exec_module = exec_module
    except AttributeError:  # a loader without room for it
        events.write_once("cannot watch", module=name, because=f"loader {type(loader).__name__}")
