"""The examples of a batch cannot be combined into one tensor.

What you see: "stack expects each tensor to be equal size", "Unable to create tensor, you should probably activate
truncation and/or padding", or "batch must contain tensors, numbers, dicts or lists; found <class 'NoneType'>", from the
collate step.
Why: texts of different lengths were not padded, labels were not padded with their inputs, images differ in size, a
sample is None, or a text column reached the collator.
What we do: name the step and the sizes. Padding in the collator is the user's choice.
"""

from holdfast.core.evidence import Evidence, Passage
from holdfast.core.plan import Remedy
from holdfast.hazards import Case, Hazard, judged, proves, seen, suggests
from holdfast.hazards.tracebacks import error_raised_in, is_in_torch_loader

_COLLATES = seen(
    "log",
    r"(?i)collat|\bfetch\.py\b|_utils[/\\]fetch|dataloader\.py|tokenizer\.pad|convert_to_tensors|tokenization_\w+\.py|feature_extraction_\w+\.py|DataLoader worker process",
)
_RAGGED = r"expected sequence of length \d+ at dim \d+ \(got \d+\)|too many dimensions '\w+'"
_IN_COLLATE = r"(?i)collat"
_STACKED = r"stack expects each tensor to be equal size|Sizes of tensors must match except in dimension 0|inconsistent tensor sizes"
_SIZES = (
    rf"{_STACKED}|expected a non-empty TensorList|all input arrays must have the same shape"
    r"|inhomogeneous shape|setting an array element with a sequence|Trying to resize storage that is not resizable"
    r"|Could not infer dtype of (?:NoneType|dict|\w*Image)|expected Tensor as element \d+ in argument \d+"
    r"|new\(\): (?:data must be|invalid data type)|only (?:size-1|integer) (?:arrays|tensors)"
)


def _has_not_failed(evidence: Evidence) -> bool:
    return evidence.ended_well or (len(evidence.exits) == 1 and evidence.is_hang)


def _ends_in_collate(evidence: Evidence) -> Passage | None:
    """A traceback cut before its last line that stops inside a collate function."""
    if evidence.errors or not evidence.stacks or _has_not_failed(evidence):
        return None
    frame = max(evidence.stacks[-1].frames, key=lambda frame: frame.line)
    callers = " ".join(f"{outer.function} {outer.module}" for outer in evidence.stacks[-1].frames).lower()
    pads = "tokenization_utils" in frame.module and "collat" in callers
    if pads or "collate" in frame.function.lower() or "collat" in frame.module.lower():
        return Passage("frame", frame.line, f"{frame.function} ({frame.module})")
    return None


def _keys_differ(evidence: Evidence) -> Passage | None:
    """A KeyError from torch's own collate: one sample lacks a key that the first one has."""
    found = error_raised_in(evidence, "KeyError")
    if found and found[1] and is_in_torch_loader(found[1][-1]) and "collate" in found[1][-1].module:
        return found[0]
    return None


HAZARD = Hazard(
    slug="collate-mismatch",
    title="the examples of a batch cannot be combined into one tensor",
    kind="error",
    signs=(
        proves("error", r"you should probably activate truncation and/or padding"),
        proves(
            "error",
            r"batch must contain tensors?, (?:numpy arrays, )?numbers|each element in list of batch should be of equal size",
        ),
        proves("error", r"stack expects each tensor to be equal size", also=(_COLLATES,)),
        suggests("error", _SIZES, also=(seen("frame", _IN_COLLATE),)),
        suggests("error", _STACKED, also=(seen("log", r"(?i)collat|torch\.stack\(batch"),)),
        suggests("error", r"stack expects each tensor to be equal size", unless=(seen("frame", r"\(.*\.py"),)),
        suggests("error", _RAGGED, also=(_COLLATES,)),
        suggests("error", _RAGGED, unless=(seen("frame", r"\(.*\.py"),)),
        suggests("error", r"Trying to resize storage that is not resizable", also=(_COLLATES,)),
        judged("suggests", _keys_differ),
        judged("suggests", _ends_in_collate),
    ),
    remedies=(
        Remedy(
            "pad each batch, labels included",
            command="DataCollatorWithPadding(tokenizer) or DataCollatorForSeq2Seq(tokenizer)",
            cost="none: padding is masked",
        ),
        Remedy(
            "drop text columns before training, so that only numbers reach the collator",
            command="dataset = dataset.map(tokenize, batched=True, remove_columns=dataset.column_names)",
        ),
        Remedy(
            "resize or crop images to one size",
            command="transforms.Resize((224, 224))",
            cost="the model sees different images",
            keeps=False,
        ),
    ),
    sources=(
        "huggingface/transformers#39266",
        "huggingface/transformers#20638",
        "bghira/SimpleTuner#59",
        "milesial/Pytorch-UNet#285",
        "amdegroot/ssd.pytorch#546",
    ),
    matches=(
        "RuntimeError: stack expects each tensor to be equal size, but got [22] at entry 0 and [106] at entry 1",
        '  File "/lib/torch/utils/data/_utils/collate.py", line 55, in default_collate\n    return torch.stack(batch, 0, out=out)\n'
        "RuntimeError: invalid argument 0: Sizes of tensors must match except in dimension 0. Got 500 and 375 in dimension 2 at /pytorch/aten/src/TH/generic/THTensor.cpp:711",
        '  File "/lib/torch/utils/data/dataloader.py", line 109, in default_collate\n    return torch.stack(batch, 0)\n'
        "RuntimeError: inconsistent tensor sizes at /py/conda-bld/pytorch_1493/work/torch/lib/TH/generic/THTensorMath.c:2709",
        "ValueError: Unable to create tensor, you should probably activate truncation and/or padding with 'padding=True' 'truncation=True' to have batched tensors with the same length.",
        "ValueError: expected sequence of length 15757 at dim 1 (got 16242)",
        "ValueError: too many dimensions 'str'",
        "TypeError: default_collate: batch must contain tensors, numpy arrays, numbers, dicts or lists; found <class 'NoneType'>",
        "RuntimeError: each element in list of batch should be of equal size",
        '  File "/lib/torch/utils/data/_utils/collate.py", line 163, in collate_tensor_fn\n    out = elem.new(storage).resize_(len(batch), *list(elem.size()))\n'
        "RuntimeError: Trying to resize storage that is not resizable",
        Case(
            '  File "/lib/torch/utils/data/_utils/fetch.py", line 54, in fetch\n    return self.collate_fn(data)\n'
            '  File "/lib/torch/utils/data/_utils/collate.py", line 265, in default_collate\n',
            "1",
        ),
        '  File "/venv/lib/python3.11/site-packages/torch/utils/data/_utils/collate.py", line 213, in collate_tensor_fn\n    return torch.stack(batch, 0, out=out)\nRuntimeError: stack expects each tensor to be equal size, but got [3, 200, 300] at entry 0 and [3, 224, 224] at entry 1',
        '  File "/venv/lib/python3.11/site-packages/transformers/tokenization_utils_base.py", line 767, in convert_to_tensors\n    tensor = as_tensor(value)\nValueError: expected sequence of length 64 at dim 1 (got 60)',
        "  File \"/venv/lib/python3.11/site-packages/torch/utils/data/_utils/collate.py\", line 171, in collate\n    return {key: collate([d[key] for d in batch]) for key in elem}\nKeyError: 'mask'",
    ),
    near_misses=(
        '  File "model.py", line 35, in forward\n    return torch.stack(heads)\n'
        "RuntimeError: stack expects each tensor to be equal size, but got [8, 64] at entry 0 and [8, 32] at entry 1",
        "RuntimeError: Sizes of tensors must match except in dimension 1. Expected size 64 but got size 63 for tensor number 1 in the list.",
        "ValueError: Expected input batch_size (1280) to match target batch_size (1024).",
        "ValueError: Asking to pad but the tokenizer does not have a padding token.",
    ),
)
