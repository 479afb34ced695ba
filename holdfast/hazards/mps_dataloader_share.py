"""Tensors on the Apple GPU were passed to worker processes.

What you see: "RuntimeError: _share_filename_: only available on CPU" when a data loader starts its workers.
Why: only CPU memory can be shared between processes. A dataset, collate function or model with GPU tensors cannot be
sent to a spawned worker. After torch.set_default_device('mps') every new tensor is on the GPU.
What we do: load data in the main process. Workers that use only CPU tensors are fine.
"""

from holdfast.core.plan import Remedy
from holdfast.hazards import Hazard, proves, seen, suggests
from holdfast.hazards.apple_gpu import ON_MPS

HAZARD = Hazard(
    slug="mps-dataloader-share",
    title="tensors on the Apple GPU cannot be shared with worker processes",
    kind="error",
    signs=(
        proves("log", r"_share_(?:filename|fd|memory)\w*: only available on CPU"),
        proves("error", r"cannot pin 'torch\.mps\.\w+' only dense CPU tensors"),
        suggests(
            "error",
            r"Cannot re-initialize MPS in forked subprocess|MPS (?:in|with) (?:a )?fork",
            also=(seen("log", r"(?i)data ?loader|_worker_loop|num_workers"),),
        ),
        suggests(
            "frame",
            r"^(?:_share_filename_cpu_|_share_fd_cpu_|share_memory_?|reduce_storage|reduce_tensor) \(",
            also=(ON_MPS,),
        ),
    ),
    remedies=(
        Remedy("load data in the main process", change={"loader_workers": 0}, cost="slower input"),
        Remedy(
            "keep the dataset and collator on the CPU and move each batch in the training loop",
            command="batch = batch.to('mps')",
        ),
        Remedy(
            "fork the workers, if they use only CPU tensors",
            command="DataLoader(..., multiprocessing_context='fork')",
        ),
    ),
    sources=(
        "pytorch/pytorch#87688",
        "huggingface/transformers#38819",
        "huggingface/sentence-transformers#3014",
        "pytorch/examples#1105",
    ),
    over=("fork-objc", "mps-device-mismatch", "dataloader-pickle"),
    matches=(
        "RuntimeError: _share_filename_: only available on CPU",
        '  File "/lib/torch/multiprocessing/reductions.py", line 319, in reduce_storage\n    metadata = storage._share_filename_cpu_()\nRuntimeError: _share_filename_: only available on CPU',
        "RuntimeError: _share_fd_: only available on CPU",
        "RuntimeError: cannot pin 'torch.mps.FloatTensor' only dense CPU tensors can be pinned",
        '  File "data.py", line 3, in _worker_loop\nRuntimeError: Cannot re-initialize MPS in forked subprocess',
        'device: mps\n  File "/venv/lib/python3.11/site-packages/torch/multiprocessing/reductions.py", line 240, in reduce_tensor\n    storage._share_filename_cpu_()\n',
    ),
    near_misses=(
        "UserWarning: 'pin_memory' argument is set as true but not supported on MPS now, then device pinned memory won't be used.",
        "RuntimeError: Cannot re-initialize CUDA in forked subprocess.",
        "RuntimeError: Placeholder storage has not been allocated on MPS device!",
    ),
)
