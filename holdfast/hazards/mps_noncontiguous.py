"""The backward pass on the Apple GPU cannot handle a tensor that is not contiguous.

What you see: "view size is not compatible with input tensor's size and stride ... Use .reshape(...) instead" from
`loss.backward()`, for a model that trains on the CPU and on CUDA.
Why: the MPS backward of convolutions, normalization and interpolation takes a `view` of a tensor that a `permute` or
`transpose` before it has left in another memory order.
What we do: continue on the CPU if that is allowed; otherwise say where `.contiguous()` belongs.
"""

from holdfast.core.plan import Remedy
from holdfast.hazards import Hazard, proves, seen, suggests
from holdfast.hazards.apple_gpu import ON_MPS

_STRIDES = r"view size is not compatible with input tensor's size and stride"
_BACKWARD = seen("log", r"\.backward\(|_engine_run_backward|run_backward|Backward0")

HAZARD = Hazard(
    slug="mps-noncontiguous",
    title="the backward pass on the Apple GPU needs contiguous tensors",
    kind="error",
    signs=(
        proves("error", _STRIDES, also=(ON_MPS, _BACKWARD)),
        suggests("error", _STRIDES, also=(seen("log", r"/Users/|/opt/homebrew|macOS|(?i:apple m\d)"), _BACKWARD)),
    ),
    remedies=(
        Remedy("train on the CPU", change={"device": "cpu"}, cost="slower"),
        Remedy(
            "make the tensor contiguous before the convolution or normalization that anomaly detection names",
            command="x = x.permute(0, 2, 1).contiguous()   # torch.autograd.set_detect_anomaly(True) names the place",
        ),
        Remedy("use a torch in which the operation is fixed", command="pip install --upgrade torch"),
    ),
    sources=(
        "pytorch/pytorch#140902",
        "pytorch/pytorch#156792",
        "braindecode/braindecode#1086",
        "pytorch/pytorch#143123",
    ),
    matches=(
        'device: mps\n  File "train.py", line 31, in step\n    loss.backward()\n  File "/venv/lib/python3.12/site-packages/torch/autograd/graph.py", line 825, in _engine_run_backward\n'
        "RuntimeError: view size is not compatible with input tensor's size and stride (at least one dimension spans across two contiguous subspaces). Use .reshape(...) instead.",
        '  File "/Users/jo/vocoder/train.py", line 31, in step\n    loss.backward()\n'
        "RuntimeError: view size is not compatible with input tensor's size and stride (at least one dimension spans across two contiguous subspaces). Use .reshape(...) instead.",
    ),
    near_misses=(
        '  File "train.py", line 88, in accuracy\n    correct[:k].view(-1)\n'
        "RuntimeError: view size is not compatible with input tensor's size and stride (at least one dimension spans across two contiguous subspaces). Use .reshape(...) instead.",
    ),
)
