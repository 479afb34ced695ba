"""A label is a number that the model has no output for.

What you see: "IndexError: Target 5 is out of bounds" on the CPU; on a GPU "Assertion `t >= 0 && t < n_classes` failed"
many times, then "device-side assert triggered".
Why: classes are numbered from 0, so the last of five classes is 4. Labels that start at 1, masks with gray values
(255), an unmapped background class, or `num_labels` left at 2 all exceed it.
What we do: count the labels when the data is read, map them to 0..n-1, and size the head accordingly.
"""

from holdfast.core.plan import Remedy
from holdfast.hazards import Hazard, proves, seen, suggests

HAZARD = Hazard(
    slug="label-out-of-range",
    title="a label is outside the model's classes",
    kind="error",
    over=("cuda-device-assert",),
    signs=(
        proves("log", r"Target -?\d+ is out of bounds"),
        proves("log", r"Assertion `?\(?t >= 0\)? && \(?t < n_classes"),
        proves("log", r"cur_target >= 0 && cur_target < n_classes"),
        proves("log", r"target_val >= zero && target_val <= one|all elements of target should be between 0 and 1"),
        proves("log", r"Class values must be (?:smaller than num_classes|non-negative)"),
        proves("log", r"[Rr]eceived a label value of -?\d+ which is outside the valid range"),
        proves("log", r"label must be in \[0, ?(?:num_class\)|1\])|Invalid classes inferred from unique values of `y`"),
        proves("log", r"Label class \d+ exceeds (?:nc=|dataset class count)"),
        proves(
            "log",
            r"Detected (?:more unique values in `target`|the following values in `target`)|highest label in `target` should be smaller",
        ),
        proves(
            "error",
            r"(?i)\blabels?\b[^\n]{0,40}\b(?:out of (?:range|bounds)|exceeds? (?:the )?(?:number of classes|num_(?:classes|labels)))",
        ),
        suggests(
            "log", r"(?:Spatial)?ClassNLLCriterion\S*:\d+[^\n]*Assertion|(?:nll_loss|NLLLoss)\w*\S*[^\n]*Assertion"
        ),
        suggests(
            "log",
            r"idx_dim >= 0 && idx_dim < index_size",
            also=(seen("log", r"one_hot|scatter_|[Dd]ice|[Ll]abel|[Tt]arget"),),
        ),
        suggests("error", r"The `?num_classes`? \(\d+\) in \w+ of \w+ does not match"),
        suggests(
            "error",
            r"index (?:out of range|-?\d+ is out of bounds)",
            also=(
                seen("log", r"cross_entropy|nll_loss|one_hot|NLLLoss|CrossEntropyLoss|(?:labels?|targets?)\[[^\n]*\]"),
            ),
            unless=(seen("log", r"\bembedding\(|torch\.embedding|position_embeddings|\bwte\(|embed_tokens"),),
        ),
        suggests(
            "error",
            r"device-side assert triggered",
            also=(seen("log", r"in (?:cross_entropy|nll_loss\w*)\b|cross_entropy_loss\(|_nn\.nll_loss|criterion\("),),
            unless=(seen("log", r"srcIndex|Indexing\.cu|IndexKernel\.cu|embedding\("),),
        ),
    ),
    remedies=(
        Remedy(
            "map the labels to 0..n-1 before training",
            command="names = sorted(set(labels)); labels = [names.index(name) for name in labels]",
            cost="none",
        ),
        Remedy(
            "give the model as many outputs as there are classes, background included",
            command="AutoModelForSequenceClassification.from_pretrained(..., num_labels=len(names))",
        ),
        Remedy(
            "ignore labels that must not count, such as 255 in masks",
            command="CrossEntropyLoss(ignore_index=255)",
        ),
    ),
    sources=(
        "milesial/Pytorch-UNet#258",
        "milesial/Pytorch-UNet#291",
        "EricFillion/happy-transformer#248",
        "ultralytics/ultralytics#4514",
        "torch/nn#471",
    ),
    matches=(
        "IndexError: Target 5 is out of bounds.",
        "../aten/src/ATen/native/cuda/Loss.cu:250: nll_loss_forward_reduce_cuda_kernel_2d: block: [0,0,0], thread: [3,0,0] Assertion `t >= 0 && t < n_classes` failed.\nRuntimeError: CUDA error: device-side assert triggered",
        "RuntimeError: Assertion `cur_target >= 0 && cur_target < n_classes' failed.  at /pytorch/aten/src/THNN/generic/ClassNLLCriterion.c:93",
        "RuntimeError: Class values must be smaller than num_classes.",
        "AssertionError: Label class 2 exceeds nc=2 in data.yaml. Possible class labels are 0-1",
        "RuntimeError: all elements of target should be between 0 and 1",
        "tensorflow.python.framework.errors_impl.InvalidArgumentError: Received a label value of 10 which is outside the valid range of [0, 10).",
        "xgboost.core.XGBoostError: Check failed: label must be in [0, num_class).",
        "RuntimeError: Detected more unique values in `target` than `num_classes`. Expected only 3 but found 4 in `target`.",
        "ValueError: label 7 is out of range for 5 classes",
        'one_hot(target)\n../aten/src/ATen/native/cuda/ScatterGatherKernel.cu:144: operator(): block: [0,0,0], thread: [1,0,0] Assertion `idx_dim >= 0 && idx_dim < index_size && "index out of bounds"` failed.',
        "AssertionError: The `num_classes` (80) in Shared2FCBBoxHead of MMDataParallel does not match the length of `CLASSES` 3) in CocoDataset",
        "    return torch._C._nn.cross_entropy_loss(input, target)\nIndexError: Target 9 is out of bounds; index 9 is out of bounds",
        '  File "loss.py", line 9, in cross_entropy\nRuntimeError: CUDA error: device-side assert triggered',
    ),
    near_misses=(
        "IndexError: index out of range in self",
        "RuntimeError: CUDA error: device-side assert triggered",
        "ValueError: Expected input batch_size (1280) to match target batch_size (1024).",
        "IndexError: list index out of range",
        "../aten/src/ATen/native/cuda/Indexing.cu:1236: indexSelectSmallIndex: block: [5,0,0], thread: [44,0,0] Assertion `srcIndex < srcSelectDimSize` failed.",
    ),
)
