"""Distributed training waits for gradients that never come, because part of the model did not contribute to the loss.

What you see: "Expected to have finished reduction in the prior iteration before starting a new one" at the second step.
Why: DistributedDataParallel expects a gradient for every trainable weight at every step; a head, an expert or an
adapter that was not used in this forward pass has none.
What we do: let the wrapper look for unused weights. The permanent fix is to freeze or remove them.
"""

from holdfast.core.plan import Remedy
from holdfast.hazards import Hazard, proves, seen, suggests

HAZARD = Hazard(
    slug="ddp-unused-parameters",
    title="part of the model did not contribute to the loss, and distributed training waits for it",
    kind="error",
    signs=(
        proves(
            "log",
            r"Expected to have finished reduction in the prior iteration|your module has parameters that were not used in producing (?:its output|loss|the loss)",
        ),
        proves(
            "log",
            r"Parameters? (?:indices )?which did not receive grad for rank|your LightningModule has parameters that were not used in producing the loss",
        ),
        # Also printed when gradient checkpointing runs a block twice under DDP; that is a separate hazard.
        suggests(
            "error",
            r"Expected to mark a variable ready only once|has been marked as ready twice",
            unless=(seen("log", r"checkpoint\.py|CheckpointFunction|gradient_checkpointing|use_reentrant"),),
        ),
        suggests(
            "frame",
            r"^_rebuild_buckets|^prepare_for_backward|^_find_tensors \(.*distributed",
            unless=(seen("error", r"Error"),),
        ),
        suggests("log", r"self\.reducer\._rebuild_buckets\(\)\)?:?$", unless=(seen("error", r"Error"),)),
    ),
    remedies=(
        Remedy(
            "let the wrapper look for unused weights",
            command="DistributedDataParallel(model, find_unused_parameters=True)   # Trainer: ddp_find_unused_parameters=True; Lightning: strategy='ddp_find_unused_parameters_true'",
            cost="one more graph traversal per step",
        ),
        Remedy(
            "list the weights, then freeze them or use them in the loss",
            command="TORCH_DISTRIBUTED_DEBUG=DETAIL torchrun train.py",
        ),
        Remedy("train on one GPU", command="CUDA_VISIBLE_DEVICES=0 python train.py", cost="slower"),
    ),
    sources=(
        "Megvii-BaseDetection/YOLOX#885",
        "speechbrain/speechbrain#2340",
        "pytorch/pytorch#41324",
        "pytorch/pytorch#105723",
    ),
    matches=(
        "RuntimeError: Expected to have finished reduction in the prior iteration before starting a new one. This error indicates that your module has parameters that were not used in producing loss.",
        "Parameter indices which did not receive grad for rank 1: 160 161 162",
        "Parameters which did not receive grad for rank 0: model.encoder.layers.22.final_layer_norm.bias, model.encoder.layers.22.final_layer_norm.weight",
        "RuntimeError: It looks like your LightningModule has parameters that were not used in producing the loss returned by training_step.",
        "RuntimeError: Expected to mark a variable ready only once. This error is caused by one of the following reasons: 1) Use of a module parameter outside the `forward` function.",
        '  File "/lib/python3.8/site-packages/torch/nn/parallel/distributed.py", line 1148, in forward\n    if torch.is_grad_enabled() and self.reducer._rebuild_buckets():',
        '  File "/venv/lib/python3.11/site-packages/torch/nn/parallel/distributed.py", line 1480, in _find_tensors\n',
    ),
    near_misses=(
        "[W reducer.cpp:1158] Warning: find_unused_parameters=True was specified in DDP constructor, but did not find any unused parameters in the forward pass.",
        "RuntimeError: element 0 of tensors does not require grad and does not have a grad_fn",
    ),
)
