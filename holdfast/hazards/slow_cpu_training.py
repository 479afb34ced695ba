"""Training runs on the CPU and would take days.

What you see: "device: cpu, n_gpu: 0", "GPU available: True, used: False" or a banner that ends in CPU, and a progress
bar with many seconds per step and days to go. Nothing has failed.
Why: no GPU was requested, none was found, or the installed torch cannot use it. A transformer is ten to a hundred times
slower on a CPU.
What we do: use the GPU if there is one; otherwise use all cores, short batches without padding, and bf16 if the CPU
supports it.
"""

from holdfast.core.evidence import Evidence, Passage
from holdfast.core.facts import MachineFacts
from holdfast.core.observations import ExitStatus
from holdfast.core.plan import Plan, Remedy
from holdfast.core.text import plural
from holdfast.hazards import Case, Hazard, Invited, judged, observed, seen, suggests

_ON_CPU = (
    r"(?i)\bdevice\w*['\"]?\s*[:=]\s*(?:torch\.device\()?(?:type=)?['\"]?cpu\b|n_gpu[:=] ?0\b|using (?:device:? ?)?cpu\b",
    r"\btorch[ -][\d.]+\S* CPU\b|GPU available: (?:False|True[^\n]*used: False)|GPU available but not used",
    r"(?i)no (?:gpu|cuda|accelerator) (?:is |was )?(?:found|detected|available)|cuda (?:is )?not available|running on (?:the )?cpu\b",
    r"is_available\(\)\)?[:\s>]*False|FP16 is not supported on CPU|cuda drivers on your machine, GPU will not be used",
    r"(?i)on (?:the )?cpu[^\n]{0,40}slow|training on cpu",
    r"GPU_mem[^\n]*(?:\n[^\n]*){0,3}?\n\s+\d+/\d+\s+0G\s",
)
_ON_GPU = r"GPU_mem[^\n]*(?:\n[^\n]*){0,3}?\n\s+\d+/\d+\s+[1-9][\d.]*G\b|\bcuda:\d|used: True|[Dd]evice\w*\s*[:=]\s*['\"]?(?:cuda|mps)"
_BAR = r"<(?:(\d+) days?, *)?(?:(\d+):)?\d+:\d\d, +(\d+(?:\.\d+)?) ?(s/(?:it|step|batch|iter|ex)|(?:it|step|batch|iter|ex\w*)/s)"
_SLOW_STEP_SECONDS = 5.0
_LONG_HOURS = 5
_VERY_LONG_HOURS = 24


def invited_by(facts: MachineFacts, plan: Plan) -> Invited | None:
    """Say why this machine and plan invite the hazard; None when they do not."""
    if "torch" not in facts.distributions and facts.torch is None:
        return None
    if plan.device == "cpu" and facts.gpus:
        return Invited(f"the plan trains on the CPU, although this machine has {facts.gpus[0].name}")
    # Without a CPU count only a folder of packages was inspected, not a machine.
    if not facts.gpus and facts.cpu_count is not None and plan.device in ("auto", "cpu"):
        return Invited(f"no GPU found; training runs on {plural(facts.cpu_count, 'processor')}", "note")
    return None


def _cpu_and_slow(evidence: Evidence) -> Passage | None:
    """A line that mentions the CPU, and progress that shows hours."""
    if seen("log", _ON_GPU).find(evidence):
        return None
    on_cpu = _says_cpu(evidence)
    return on_cpu if on_cpu and _slow(evidence, _SLOW_STEP_SECONDS, _LONG_HOURS) else None


def _only_slow(evidence: Evidence) -> Passage | None:
    """Slow steps, more than a day to go and no mention of a GPU: most likely the CPU."""
    if evidence.ended_well or seen("log", r"(?i)cuda|\bgpu|\bmps\b|nccl|\brank|\bnvidia").find(evidence):
        return None
    return _slow(evidence, None, _VERY_LONG_HOURS)


def _only_cpu(evidence: Evidence) -> Passage | None:
    """A line that mentions the CPU, in a run that did not end well and has no other failure."""
    if evidence.ended_well or evidence.errors or seen("log", _ON_GPU).find(evidence):
        return None
    return _says_cpu(evidence)


def _says_cpu(evidence: Evidence) -> Passage | None:
    return next((passage for pattern in _ON_CPU if (passage := seen("log", pattern).find(evidence))), None)


def _slow(evidence: Evidence, step_seconds: float | None, hours: int) -> Passage | None:
    """A progress bar with at least this many seconds per step, or this many hours to go."""
    for match, passage in evidence.log.search(_BAR):
        if int(match[1] or 0) * 24 + int(match[2] or 0) >= hours:
            return passage
        if step_seconds is not None and match[4].startswith("s/") and float(match[3]) >= step_seconds:
            return passage
    return None


HAZARD = Hazard(
    slug="slow-cpu-training",
    title="training runs on the CPU and would take very long",
    kind="slow",
    invited_by=invited_by,
    signs=(
        judged("suggests", _cpu_and_slow),
        suggests(
            "log",
            r"GPU available: True[^\n]*used: False|GPU available but not used",
            unless=(observed(ExitStatus, lambda one: one.code == 0),),
        ),
        judged("fallout", _only_slow),
        judged("fallout", _only_cpu),
    ),
    remedies=(
        Remedy("use the GPU if there is one", change={"device": "auto"}),
        Remedy(
            "install a torch that can use it",
            command="pip install torch --index-url https://download.pytorch.org/whl/cu128",
        ),
        Remedy(
            "compute in bf16 if the CPU supports it", change={"precision": "bf16"}, cost="small rounding differences"
        ),
        Remedy(
            "train adapters instead of all weights, or use a smaller model",
            command="python train.py --model_name_or_path sentence-transformers/all-MiniLM-L6-v2",
            cost="another model",
            keeps=False,
        ),
    ),
    sources=(
        "huggingface/sentence-transformers#85",
        "HarryVolek/PyTorch_Speaker_Verification#61",
        "ultralytics/yolov5#2389",
        "prophesier/diff-svc#281",
        "junyanz/pytorch-CycleGAN-and-pix2pix#914",
    ),
    matches=(
        Case(
            "05/30/2022 08:36:06 - WARNING - __main__ - Process rank: -1, device: cpu, n_gpu: 0, distributed training: False\n  0%|          | 130/58880 [13:21<101:39:12,  6.23s/it]",
            "",
        ),
        "GPU available: True, used: False\nTPU available: False, using: 0 TPU cores\nEpoch 0:   1%|1         | 12/1890 [10:02<26:10:11, 50.2s/it]",
        "Ultralytics YOLOv8.0.20 Python-3.8.10 torch-1.13.1 CPU\n      1/100         0G      1.21       2.3:   3%|3         | 4/120 [01:02<5:30:11,  9.31s/it]",
        Case("Iteration:   0%|          | 130/58880 [13:21<101:39:12,  6.23s/it]", "hang"),
    ),
    near_misses=(
        Case(
            "torch/amp/grad_scaler.py:136: UserWarning: torch.cuda.amp.GradScaler is enabled, but CUDA is not available.  Disabling.",
            "0",
        ),
        "RuntimeError: Attempting to deserialize object on a CUDA device but torch.cuda.is_available() is False.",
        Case("device: cuda:0, n_gpu: 1\n  1%|          | 130/58880 [13:21<101:39:12,  6.23s/it]", "hang"),
    ),
)
