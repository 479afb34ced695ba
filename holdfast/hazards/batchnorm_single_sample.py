"""Batch normalization got a batch with one example.

What you see: "Expected more than 1 value per channel when training, got input size torch.Size([1, 512])", often at the
end of the first epoch.
Why: the last batch of an epoch has what is left over, which can be one example; or the micro-batch is 1. One value has
no variance.
What we do: drop the incomplete last batch, or use a larger batch.
"""

from holdfast.core.plan import Remedy
from holdfast.hazards import Hazard, proves

HAZARD = Hazard(
    slug="batchnorm-single-sample",
    title="batch normalization got a batch with one example",
    kind="error",
    signs=(
        proves("error", r"Expected more than 1 (?:value per channel|spatial element) when training, got input size"),
    ),
    remedies=(
        Remedy(
            "drop the incomplete last batch",
            command="DataLoader(..., drop_last=True)   # or dataloader_drop_last=True",
            cost="at most one batch per epoch is not seen",
        ),
        Remedy(
            "use a batch size that leaves no single example", command="python train.py --batch-size 15", keeps=False
        ),
        Remedy(
            "use GroupNorm or LayerNorm", command="torch.nn.GroupNorm(32, channels)", cost="another model", keeps=False
        ),
    ),
    sources=("pytorch/pytorch#7716", "meetps/pytorch-semseg#214", "fastai/fastai#1352", "openvinotoolkit/nncf#379"),
    matches=("ValueError: Expected more than 1 value per channel when training, got input size torch.Size([1, 512])",),
    near_misses=("ValueError: Expected input batch_size (1) to match target batch_size (2).",),
)
