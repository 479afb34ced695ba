"""Hooks on Hugging Face's libraries outside the Trainer: phases, the attention kernel and the precision of models."""

from __future__ import annotations

from typing import Any

from holdfast_preload import event_writer, saved_files, script_settings, weight_check
from holdfast_preload.wraps import Function, around, in_phase

_MANY_TEXTS = 1000


def after_safetensors(module: Any) -> None:
    """Phases of saving and loading safetensors files."""
    for name in ("save_file", "save_model"):
        around(module, name, lambda save: weight_check.before_saving(in_phase("save")(save)))
        around(module, name, saved_files.reporting("filename"))
    for name in ("load_file", "load_model"):
        around(module, name, in_phase("load"))


def after_file_download(module: Any) -> None:
    """The phase of downloading one file."""
    around(module, "hf_hub_download", in_phase("download"))


def after_snapshot_download(module: Any) -> None:
    """The phase of downloading a repository."""
    around(module, "snapshot_download", in_phase("download"))


def after_hf_api(module: Any) -> None:
    """The phase of requests to the hub, the first of which has no timeout."""
    for name in ("model_info", "dataset_info"):
        around(module.HfApi, name, in_phase("download"))


def after_arrow_dataset(module: Any) -> None:
    """The phase of mapping and filtering rows, which is mostly tokenizing."""
    for name in ("map", "filter"):
        around(module.Dataset, name, in_phase("tokenize"))


def after_datasets_load(module: Any) -> None:
    """The phase of loading a dataset."""
    around(module, "load_dataset", in_phase("load"))


def after_accelerator(module: Any) -> None:
    """Phases of saving and resuming in loops that use accelerate."""
    around(module.Accelerator, "save_state", in_phase("save"))
    around(module.Accelerator, "save_state", saved_files.reporting("return"))
    around(module.Accelerator, "load_state", in_phase("resume"))


def after_tokenization(module: Any) -> None:
    """The phase of tokenizing a long list of texts."""
    around(module.PreTrainedTokenizerBase, "__call__", _many_texts)


def after_modeling(module: Any) -> None:
    """Phases of loading and saving a model, with the planned attention kernel and precision."""
    around(module.PreTrainedModel, "from_pretrained", _changed_model)
    around(module.PreTrainedModel, "save_pretrained", in_phase("save"))


def _many_texts(call: Function) -> Function:
    phased = in_phase("tokenize")(call)

    def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N807  (takes the place of a method)
        texts = args[0] if args else kwargs.get("text")
        many = isinstance(texts, (list, tuple)) and len(texts) >= _MANY_TEXTS
        return (phased if many else call)(self, *args, **kwargs)

    return __call__


def _changed_model(from_pretrained: Function) -> Function:
    phased = in_phase("load")(from_pretrained)

    def changed(cls: Any, *args: Any, **kwargs: Any) -> Any:
        attention, precision = script_settings.change("attention"), script_settings.change("precision")
        if attention in ("eager", "sdpa") and kwargs.get("attn_implementation") != attention:
            kwargs["attn_implementation"] = attention
            event_writer.applied("attention", attention, "from_pretrained(attn_implementation=...)")
        if precision == "fp32" and not kwargs.get("quantization_config"):
            name = "torch_dtype" if "torch_dtype" in kwargs else "dtype"
            if name in kwargs and "32" not in str(kwargs[name]):
                event_writer.applied("precision", "fp32", f"from_pretrained({name}={kwargs[name]})")
                kwargs[name] = "float32"
        found = phased(cls, *args, **kwargs)
        if precision == "fp32" and not kwargs.get("quantization_config"):
            _widen(found[0] if isinstance(found, tuple) else found)
        return found

    return changed


def _widen(model: Any) -> None:
    """Convert weights that were stored in half precision to float32: the library keeps the stored precision."""
    dtype = str(model.dtype)
    if dtype in ("torch.float16", "torch.bfloat16") and not getattr(model, "is_quantized", False):
        model.float()
        event_writer.applied("precision", "fp32", f"weights stored as {dtype}")
