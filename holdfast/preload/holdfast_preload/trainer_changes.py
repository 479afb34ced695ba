"""Changes to HF's Trainer by the fallback ladder: device, precision, loaders, batch size, gradient checkpointing.

A batch is only split with correspondingly more accumulation, so that a step sees the same examples. Where the loss
compares the examples of a batch with each other, splitting would change what is learned. It is refused, unless the loss
is a cached one, whose own mini-batch can shrink freely.
"""

from __future__ import annotations

import inspect
import re
from typing import Any

from holdfast_preload import event_writer, script_settings
from holdfast_preload.wraps import Function, around, given

# Losses over single rows. All others of sentence-transformers compare the rows of a batch.
_ROW_BY_ROW = {
    *("CosineSimilarityLoss", "ContrastiveLoss", "SoftmaxLoss", "MSELoss", "TripletLoss", "MarginMSELoss"),
    *("DenoisingAutoEncoderLoss", "DistillKLDivLoss", "EmbedDistillLoss", "BinaryCrossEntropyLoss", "CrossEntropyLoss"),
}
# Trainers of trl whose batches may be split; those that generate in groups need whole batches.
_TRL = {"SFTTrainer", "DPOTrainer", "RewardTrainer", "ORPOTrainer", "CPOTrainer", "PRMTrainer"}


def after_training_args(module: Any) -> None:
    """Change the arguments before the Trainer checks them and sets up devices."""
    around(module.TrainingArguments, "__post_init__", _changed_arguments)


def after_sentence_trainer(module: Any) -> None:
    """Remember the loss, which decides whether a batch may be split."""
    for name in ("BaseTrainer", "SentenceTransformerTrainer", "CrossEncoderTrainer"):
        trainer = getattr(module, name, None)
        if trainer is not None and trainer.__module__ == module.__name__ and "__init__" in vars(trainer):
            around(trainer, "__init__", _remembering_loss)


def split_batch(batch: int, factor: int = 1, at_most: int | None = None) -> int:
    """The largest micro-batch within the limits that divides the batch evenly; at least 1."""
    limit = max(1, min(batch // max(1, factor), at_most or batch))
    return next(size for size in range(limit, 0, -1) if batch % size == 0)


def change_batches(trainer: Any, args: Any, model: Any) -> None:
    """Split the batches of training and evaluation as the settings ask."""
    factor, at_most = int(script_settings.get("micro_batch_factor", 1)), _size("micro_batch")
    if factor > 1 or at_most:
        _split_training(trainer, args, model, factor, at_most)
    factor, at_most = int(script_settings.get("eval_micro_batch_factor", 1)), _size("eval_micro_batch")
    if factor > 1 or at_most:
        _split_evaluation(trainer, args, factor, at_most)


def _split_training(trainer: Any, args: Any, model: Any, factor: int, at_most: int | None) -> None:
    batch = int(args.per_device_train_batch_size)
    losses = _losses(trainer)
    cached = [loss for loss in losses if _is_cached(loss)]
    if cached and len(cached) == len(losses):
        for loss in cached:
            before = loss.mini_batch_size
            loss.mini_batch_size = max(1, min(min(before, batch) // factor, at_most or before))
            if isinstance(getattr(loss, "mini_batch_num_tokens", None), int):
                loss.mini_batch_num_tokens = max(1, loss.mini_batch_num_tokens // factor)
            event_writer.applied("micro_batch", loss.mini_batch_size, f"{_name(loss)}(mini_batch_size={before})")
        return
    because = _why_not_split(trainer, args, model, losses)
    micro = split_batch(batch, factor, at_most)
    if not because and micro == batch:
        because = f"a batch of {batch} cannot be split further"
    if because:
        event_writer.refused("micro_batch", factor, because)
        return
    times = batch // micro
    args.per_device_train_batch_size = micro
    args.gradient_accumulation_steps = int(args.gradient_accumulation_steps) * times
    trainer._holdfast_is_split = True
    how = f"per_device_train_batch_size={batch}, now accumulated over {args.gradient_accumulation_steps}"
    event_writer.applied("micro_batch", micro, how)


def keep_mean(trainer: Any) -> None:
    """Make the Trainer divide the loss of a split batch, where it wrongly assumes that the model does.

    The Trainer assumes that a forward with **kwargs divides by the number of items; many models ignore that number.
    """
    if not getattr(trainer, "_holdfast_is_split", False) or getattr(trainer, "compute_loss_func", None) is not None:
        return
    if getattr(trainer, "model_accepts_loss_kwargs", False) and _ignores_item_count(trainer.model):
        trainer.model_accepts_loss_kwargs = False


def _ignores_item_count(model: Any) -> bool:
    """Whether the model's own code passes the number of items to no loss."""
    base = getattr(model, "get_base_model", None)
    try:
        source = inspect.getsource(type(base() if callable(base) else model).forward)
    except (OSError, TypeError, AttributeError):
        return False
    return not re.search(r"num_items_in_batch|loss_function\([^()]*(?:\([^()]*\)[^()]*)*\*\*", source)


def _split_evaluation(trainer: Any, args: Any, factor: int, at_most: int | None) -> None:
    batch = int(args.per_device_eval_batch_size)
    if _losses(trainer) and any(_name(loss) not in _ROW_BY_ROW for loss in _losses(trainer)):
        event_writer.refused("eval_micro_batch", factor, "the evaluation loss compares the examples of a batch")
        return
    args.per_device_eval_batch_size = max(1, min(batch // factor, at_most or batch))
    if getattr(args, "eval_accumulation_steps", 0) is None:
        args.eval_accumulation_steps = 10  # predictions leave the device as they come
    event_writer.applied("eval_micro_batch", args.per_device_eval_batch_size, f"per_device_eval_batch_size={batch}")


def _why_not_split(trainer: Any, args: Any, model: Any, losses: list[Any]) -> str:
    kinds = [kind for kind in type(trainer).__mro__ if kind.__module__.partition(".")[0] == "trl"]
    if kinds and not any(kind.__name__ in _TRL for kind in kinds):
        return f"{kinds[0].__name__} needs whole batches"
    apart = [_name(loss) for loss in losses if _name(loss) not in _ROW_BY_ROW]
    if apart:
        return f"{apart[0]} compares the examples of a batch, so a smaller batch would change what is learned"
    if getattr(args, "dataloader_drop_last", False):
        return "the last, incomplete batch of an epoch is dropped, and smaller batches would drop less"
    if losses and "no_duplicates" in str(getattr(args, "batch_sampler", "")).lower():
        return "the batch sampler needs whole batches"
    if int(args.gradient_accumulation_steps) > 1 and _ignores_item_count(model):
        return "this Trainer may sum the loss over accumulated batches, so splitting would make it larger"
    modules = model.modules() if hasattr(model, "modules") else ()
    if any("BatchNorm" in type(module).__name__ for module in modules):
        return "batch normalization uses the whole batch"
    return ""


def _losses(trainer: Any) -> list[Any]:
    """Losses of sentence-transformers, also inside wrappers such as Matryoshka; empty for other Trainers."""
    if not any(kind.__module__.startswith("sentence_transformers") for kind in type(trainer).__mro__):
        return []
    given_loss = getattr(trainer, "_holdfast_loss", None)
    losses = list(given_loss.values()) if isinstance(given_loss, dict) else [given_loss]
    return [_innermost(loss) for loss in losses]


def _innermost(loss: Any) -> Any:
    while not _is_cached(loss) and getattr(loss, "loss", None) is not None and hasattr(loss.loss, "forward"):
        loss = loss.loss
    return loss


def _is_cached(loss: Any) -> bool:
    """Whether a loss computes a batch in its own mini-batches but still compares all of it."""
    return isinstance(getattr(loss, "mini_batch_size", None), int)


def _name(loss: Any) -> str:
    if loss is None:
        return "the default loss"
    return str(loss.__name__ if isinstance(loss, type) else type(loss).__name__)


def _size(change: str) -> int | None:
    value = script_settings.change(change)
    return value if isinstance(value, int) and value > 0 else None


def _remembering_loss(init: Function) -> Function:
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807  (takes the place of a method)
        try:
            self._holdfast_loss = given(init, (self, *args), kwargs).get("loss")
        except Exception as error:
            event_writer.write_once("hook_failed", where="loss", error=repr(error))
        init(self, *args, **kwargs)

    return __init__


def _changed_arguments(post_init: Function) -> Function:
    def __post_init__(self: Any) -> None:  # noqa: N807  (takes the place of a method)
        try:
            _change_arguments(self)
        except Exception as error:
            event_writer.write_once("hook_failed", where="TrainingArguments", error=repr(error))
        post_init(self)

    return __post_init__


def _change_arguments(args: Any) -> None:
    _set(args, None, logging_nan_inf_filter=False)
    if script_settings.change("device") == "cpu":
        _set(args, "device", use_cpu=True, no_cuda=True, use_mps_device=False)
    precision = script_settings.change("precision")
    if precision in ("fp32", "bf16"):
        wants_bf16 = precision == "bf16" and (args.bf16 or args.fp16)
        _set(args, "precision", fp16=False, bf16=wants_bf16, fp16_full_eval=False, bf16_full_eval=False)
    if script_settings.change("compile") is False:
        _set(args, "compile", torch_compile=False, torch_compile_backend=None, torch_compile_mode=None)
    checkpointing = script_settings.change("gradient_checkpointing")
    if isinstance(checkpointing, bool):
        _set(args, "gradient_checkpointing", gradient_checkpointing=checkpointing)
    workers = script_settings.change("loader_workers")
    if workers is not None and int(getattr(args, "dataloader_num_workers", 0) or 0) > int(workers):
        _set(args, "loader_workers", dataloader_num_workers=int(workers))
        if not workers:
            _set(args, None, dataloader_prefetch_factor=None, dataloader_persistent_workers=False)


def _set(args: Any, change: str | None, **values: Any) -> None:
    changed = {}
    for name, value in values.items():
        if hasattr(args, name) and getattr(args, name) != value:
            changed[name] = value
            setattr(args, name, value)
    if change and changed:
        how = ", ".join(f"{name}={value}" for name, value in changed.items())
        event_writer.applied(change, script_settings.change(change), f"TrainingArguments({how})")
