"""Gradient checkpointing conflicts with frozen layers, DDP, or a forward pass that is not repeatable.

What you see: "element 0 of tensors does not require grad" after "None of the inputs have requires_grad=True"; "Expected
to mark a variable ready only once"; "Recomputed values ... have different metadata".
Why: re-entrant checkpointing cuts the graph if its inputs need no gradient, as with frozen embeddings under LoRA, and
runs backward twice where DDP expects one pass. The non-re-entrant kind compares the second forward pass with the first.
What we do: use non-re-entrant checkpointing, let the inputs require gradients, or train without checkpointing.
"""

from holdfast.core.plan import Remedy
from holdfast.hazards import Hazard, proves, seen, suggests

_CHECKPOINTED = seen(
    "log",
    r"torch[/\\.]utils[/\\.]checkpoint|gradient_checkpoint|gradient checkpoint|activation_checkpoint|CheckpointFunction|use_reentrant"
    r"|None of the inputs have requires_grad|unsloth_zoo[/\\]gradient_checkpointing",
)

HAZARD = Hazard(
    slug="gradient-checkpointing-conflict",
    title="gradient checkpointing conflicts with how the model is trained",
    kind="error",
    signs=(
        proves("log", r"Recomputed values for the following tensors have different metadata"),
        proves("log", r"different number of tensors was saved during the original forward and recomputation"),
        proves("error", r"torch\.utils\.checkpoint\.CheckpointError|^CheckpointError"),
        proves("log", r"Checkpointing is not compatible with \.grad\(\)"),
        proves("log", r"none of output has requires_grad=True, this checkpoint\(\) is not necessary"),
        proves("log", r"triggered for a tensor that was either never recomputed, or already unpacked"),
        proves("log", r"does not support gradient[ _]checkpointing|is not compatible with gradient checkpointing"),
        proves(
            "error",
            r"(?i)(?:gradient|activation)[ _]checkpointing\b[^\n]{0,80}(?:can't|cannot|can not|not (?:be )?(?:supported|compatible)|incompatible)",
        ),
        proves("log", r"does not require grad and does not have a grad_fn", also=(_CHECKPOINTED,)),
        # An adapter without input gradients, in most reports; a frozen model or no_grad in the others.
        suggests("error", r"does not require grad and does not have a grad_fn"),
        # The message names re-entrant checkpointing as one of two causes; in nearly all reports it is the cause.
        proves("log", r"ready only once[^\n]*(?:multiple reentrant backward passes|`?checkpoint`? functions)"),
        proves("log", r"with name \S*(?:lora|base_model)\S* has been marked as ready twice"),
        suggests("log", r"Expected to mark a variable ready only once|has been marked as ready twice"),
        suggests("log", r"has already been reduced\. Gradient computed twice"),
        suggests("error", r"Trying to backward through the graph a second time", also=(_CHECKPOINTED,)),
        suggests("log", r"None of the inputs have requires_grad=True"),
        suggests(
            "frame",
            r"check_recomputed_tensors_match|unpack_hook|CheckpointFunctionBackward",
            unless=(seen("error", r"."),),
        ),
    ),
    remedies=(
        Remedy(
            "use non-re-entrant checkpointing",
            command='TrainingArguments(gradient_checkpointing=True, gradient_checkpointing_kwargs={"use_reentrant": False})',
            cost="none",
        ),
        Remedy(
            "let the inputs require gradients, for frozen embeddings under an adapter",
            command="model.enable_input_require_grads()",
            cost="none",
        ),
        Remedy(
            "train without gradient checkpointing, in smaller micro-batches",
            change={"gradient_checkpointing": False, "micro_batch": "halve"},
            cost="more memory per example; the effective batch does not change",
        ),
    ),
    sources=(
        "ymcui/Chinese-LLaMA-Alpaca#547",
        "modelscope/ms-swift#2746",
        "artidoro/qlora#223",
        "pytorch/pytorch#155171",
        "huggingface/peft#1745",
        "huggingface/accelerate#3536",
    ),
    matches=(
        "UserWarning: None of the inputs have requires_grad=True. Gradients will be None\nRuntimeError: element 0 of tensors does not require grad and does not have a grad_fn",
        "torch.utils.checkpoint.CheckpointError: torch.utils.checkpoint: Recomputed values for the following tensors have different metadata than during the forward pass.",
        "RuntimeError: Expected to mark a variable ready only once. This error is caused by one of the following reasons: 1) Use of a module parameter outside the `forward` function. 2) Reused parameters in multiple reentrant backward passes.",
        "ValueError: MptForCausalLM does not support gradient checkpointing.",
        "AssertionError: The parameter 447 has already been reduced. Gradient computed twice for this partition. Multiple gradient reduction is currently not supported",
        "trainable params: 4194304 || all params: 6742609920\nRuntimeError: element 0 of tensors does not require grad and does not have a grad_fn",
        "torch.utils.checkpoint.CheckpointError: torch.utils.checkpoint: A different number of tensors was saved during the original forward and recomputation.",
        "RuntimeError: Checkpointing is not compatible with .grad() or when an `inputs` parameter is passed to .backward().",
        "RuntimeError: none of output has requires_grad=True, this checkpoint() is not necessary",
        "RuntimeError: torch.utils.checkpoint: Unpack is being triggered for a tensor that was either never recomputed, or already unpacked once.",
        "ValueError: Gradient checkpointing is not supported together with this reentrant module",
        "RuntimeError: Parameter at index 127 with name base_model.model.layers.31.q_proj.lora_B.weight has been marked as ready twice.",
        '  File "/venv/lib/python3.11/site-packages/torch/utils/checkpoint.py", line 271, in backward\n    outputs = ctx.run_function(*detached_inputs)\nRuntimeError: Trying to backward through the graph a second time',
        '  File "/venv/lib/python3.11/site-packages/torch/utils/checkpoint.py", line 1129, in unpack_hook\n',
    ),
    near_misses=(
        "`use_cache=True` is incompatible with gradient checkpointing. Setting `use_cache=False`.",
        "RuntimeError: Trying to backward through the graph a second time (or directly access saved tensors after they have already been freed).",
        "UserWarning: torch.utils.checkpoint: the use_reentrant parameter should be passed explicitly. In version 2.5 we will raise an exception if use_reentrant is not passed.",
        "RuntimeError: Expected to have finished reduction in the prior iteration before starting a new one.",
    ),
)
