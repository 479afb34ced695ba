"""A forked process uses CUDA after its parent did.

What you see: "Cannot re-initialize CUDA in forked subprocess", or in older versions "initialization error (3)" in a
worker.
Why: a CUDA context does not survive `fork`. A dataset or collate function that puts tensors on the GPU does this in
every loader worker; so does a web or Celery worker that forks after the model was loaded.
What we do: load in the main process; otherwise start workers with spawn and keep GPU tensors out of the dataset.
"""

import re

from holdfast.core.evidence import Evidence, Passage
from holdfast.core.plan import Remedy
from holdfast.hazards import Hazard, judged, proves, seen, suggests

_IN_A_CHILD = r"_worker_loop|multiprocessing/(?:process|popen_fork|pool)\.py|billiard/|ForkPoolWorker|DataLoader worker|Process \w*Process-\d+|num_workers"


def _lazy_init_in_a_worker(evidence: Evidence) -> Passage | None:
    """A worker's truncated stack that stops where torch starts CUDA."""
    if evidence.errors:
        return None
    for stack in evidence.stacks:
        starts = [frame for frame in stack.frames if frame.function == "_lazy_init" and "cuda" in frame.module]
        if starts and any(re.search(_IN_A_CHILD, f"{frame.function} {frame.module}") for frame in stack.frames):
            return Passage("frame", starts[0].line, "a worker process starts CUDA")
    return None


HAZARD = Hazard(
    slug="cuda-fork",
    title="a forked process used CUDA after its parent did",
    kind="error",
    signs=(
        proves(
            "log",
            r"Cannot re-?initialize CUDA in (?:a )?forked|Lightning can't create new processes if CUDA is already initialized",
        ),
        proves(
            "log",
            r"you need to avoid running any instruction using `torch\.cuda` in any cell|CUDA has been initialized before the `?notebook_launcher",
        ),
        proves(
            "log",
            r"(?:CUDA|cuda|Cuda)(?: runtime)? ?(?:error|failure)?(?: ?\(?3\)?)?\s?:? ?'?initialization error|error=3 : initialization error|CUDA_ERROR_NOT_INITIALIZED|cuInit failed: initialization error|cudaErrorInitializationError",
            also=(seen("log", _IN_A_CHILD),),
        ),
        suggests(
            "error",
            r"(?:CUDA|cuda)(?: runtime)? error(?: \(3\))?\s?: initialization error|cudaGetDeviceCount\(\).*Error 3: initialization error",
        ),
        # A worker frees an inherited GPU tensor.
        proves("log", r"initialization error[\s\S]{0,300}(?:insert_events|raw_delete)"),
        judged("suggests", _lazy_init_in_a_worker),
    ),
    remedies=(
        Remedy("load data in the main process", change={"loader_workers": 0}, cost="slower input"),
        Remedy("start workers with spawn", change={"start_method": "spawn"}, cost="workers start slower"),
        Remedy(
            "keep the dataset and collate function on the CPU and move each batch in the training loop",
            command="batch = {name: value.to(device) for name, value in batch.items()}",
        ),
        Remedy(
            "in a Celery worker: use threads or a single process, so that nothing forks",
            command="celery -A app worker --pool=threads",
        ),
    ),
    sources=(
        "pytorch/pytorch#40403",
        "pytorch/pytorch#2517",
        "pytorch/pytorch#17357",
        "pytorch/pytorch#21092",
        "woct0rdho/ACE-Step#3",
    ),
    over=("cuda-driver-mismatch", "celery-worker-lost", "dataloader-worker-killed"),
    matches=(
        "RuntimeError: Cannot re-initialize CUDA in forked subprocess. To use CUDA with multiprocessing, you must use the 'spawn' start method",
        'RuntimeError: Traceback (most recent call last):\n  File "/lib/python3.7/site-packages/torch/utils/data/dataloader.py", line 138, in _worker_loop\n'
        "    samples = collate_fn([dataset[i] for i in batch_indices])\nRuntimeError: CUDA error: initialization error",
        "RuntimeError: cuda runtime error (3) : initialization error at ../torch/csrc/cuda/Module.cpp:33",
        "RuntimeError: Lightning can't create new processes if CUDA is already initialized. Did you manually call `torch.cuda.*` functions, have moved the model to the device, or allocated memory on the GPU any other way?",
        '  File "/lib/python3.10/site-packages/torch/utils/data/_utils/worker.py", line 308, in _worker_loop\n    data = fetcher.fetch(index)\n'
        '  File "/lib/python3.10/site-packages/torch/cuda/__init__.py", line 217, in _lazy_init',
        "ValueError: To launch a multi-GPU training from your notebook, you need to avoid running any instruction using `torch.cuda` in any cell.",
        "terminate called after throwing an instance of 'c10::Error'\n  what():  CUDA error: initialization error\nException raised from insert_events at ../c10/cuda/CUDACachingAllocator.cpp:1089",
    ),
    near_misses=(
        "RuntimeError: Unexpected error from cudaGetDeviceCount(). Error 802: system not yet initialized",
        "RuntimeError: context has already been set",
        "huggingface/tokenizers: The current process just got forked, after parallelism has already been used. Disabling parallelism to avoid deadlocks...",
    ),
)
