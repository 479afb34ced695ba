"""Chooses each setting of a run, with its reason. Pure functions of the request and of facts."""

from collections.abc import Mapping

from holdfast.core.errors import MachineError, RequestError, install, set_to, type_command
from holdfast.core.facts import DatasetFacts, MachineFacts, ModelFacts
from holdfast.core.plan import MLX, Choice, Plan
from holdfast.core.settings import TrainRequest, nodes_of, requested_batch_size
from holdfast.pipeline.parallel import cores_of

AS_REQUESTED = "as requested"
_ENCODERS = (
    *("bert", "roberta", "distilbert", "electra", "albert", "mpnet", "deberta", "deberta-v2", "xlm-roberta"),
    *("camembert", "modernbert", "longformer", "nomic_bert", "convbert", "funnel"),
)
_LARGE = 1_000_000_000  # from this many weights on, adapters are usual
_ENOUGH_STEPS = 60


def require_fitting(task: str, model: ModelFacts) -> None:
    """Refuse a model that cannot learn the task."""
    if task == "causal" and model.kind in _ENCODERS:
        raise RequestError(
            f"{model.name} is an encoder and cannot be trained to generate text",
            found=f"its architecture is {model.kind}; causal training needs a language model",
            try_next=[set_to("model", "smollm2"), set_to("task", "classify"), set_to("task", "two-tower")],
            setting="model",
        )


def choose_device(request: TrainRequest, facts: MachineFacts) -> Choice[str]:
    """A CUDA GPU that passed one test step, otherwise the CPU; the proof may choose the GPU of a Mac."""
    tried = {trial.device.partition(":")[0]: trial for trial in facts.trials}
    if request.backend == "mlx":
        _require_mlx(facts)
        return Choice(MLX, AS_REQUESTED)
    if request.device:
        _require_device(request.device, facts)
        return Choice(request.device, AS_REQUESTED)
    for kind in ("cuda", "mps"):
        gpu = next((gpu for gpu in facts.gpus if gpu.kind in (kind, "rocm" if kind == "cuda" else kind)), None)
        trial = tried.get(kind)
        if trial and trial.outcome == "agrees" and kind == "mps":
            return Choice("cpu", "the default on a Mac until the proof has timed mps here and compared its gradients")
        if trial and trial.outcome == "agrees":
            return Choice(kind, f"{gpu.name if gpu else kind} gives the same result as the CPU in a test step")
        if trial:
            return Choice("cpu", f"a test step on {kind} failed: {trial.detail}")
    if facts.gpus:
        return Choice("cpu", f"torch cannot use {facts.gpus[0].name}")
    return Choice("cpu", "no GPU was found")


def _require_mlx(facts: MachineFacts) -> None:
    """Refuse MLX where it is not installed with a part that computes; on Linux `mlx` alone has none."""
    if "mlx" in facts.distributions and {"mlx-metal", "mlx-cpu"} & facts.distributions.keys():
        return
    found = "mlx without mlx-metal or mlx-cpu" if "mlx" in facts.distributions else "no package named mlx"
    raise MachineError(
        "the MLX backend is not installed",
        found=f"{found}, on {facts.os} {facts.arch}",
        try_next=[install("mlx"), set_to("backend", "torch")],
        setting="backend",
    )


def _require_device(device: str, facts: MachineFacts) -> None:
    """Refuse a device that is missing or failed its test step."""
    trial = next((trial for trial in facts.trials if trial.device.startswith(device)), None)
    if device == "cpu" or (trial and trial.outcome == "agrees"):
        return
    found = ", ".join(gpu.name for gpu in facts.gpus) or "no GPU found"
    raise MachineError(
        f"the device {device} cannot be used on this machine",
        found=f"one test step on {device} failed: {trial.detail}"
        if trial
        else f"{found}; torch {facts.distributions.get('torch')}",
        try_next=[set_to("device", "cpu"), type_command("holdfast doctor", note="shows what is wrong with the device")],
        setting="device",
    )


def choose_precision(request: TrainRequest, facts: MachineFacts, device: str) -> Choice[str]:
    """bf16 on GPUs that support it, otherwise fp32; on a CPU the proof measures which is faster."""
    if request.precision:
        return Choice(request.precision, AS_REQUESTED)
    if device == "cuda":
        gpu = next((gpu for gpu in facts.gpus if gpu.kind in ("cuda", "rocm")), None)
        if gpu and gpu.has_bf16:
            return Choice("bf16", f"{gpu.name} supports bf16 in hardware")
        return Choice("fp32", f"{gpu.name if gpu else 'the GPU'} has no bf16, and fp16 would need loss scaling")
    return Choice("fp32", "the default on a CPU" if device == "cpu" else "the safe choice on this device")


def choose_threads(request: TrainRequest, facts: MachineFacts, processes: int = 1) -> Choice[int]:
    """One thread per core that this process may use."""
    if request.threads:
        return Choice(request.threads, AS_REQUESTED)
    cores = cores_of(facts)
    if processes > 1:
        return Choice(max(1, cores // processes), f"{processes} processes share {cores} cores")
    return Choice(cores, f"{cores} cores are available" if cores > 1 else "one core is available")


def hazard_plan(request: TrainRequest, machine: MachineFacts) -> Plan:
    """What hazards ask about a plan. None of it depends on the data, so they can warn before it is read."""
    device = choose_device(request, machine).value
    return Plan(
        device=device,
        precision=choose_precision(request, machine, device).value,
        threads=choose_threads(request, machine, request.processes or 1).value,
        compile=bool(request.compile),
    )


def choose_epochs(request: TrainRequest, facts: DatasetFacts, batch_size: int) -> Choice[int]:
    """More epochs for few rows, fewer for many."""
    if request.epochs:
        return Choice(request.epochs, AS_REQUESTED)
    rows = facts.splits.get("train", facts.rows)
    if facts.task != "classify":
        epochs = 3 if rows < 20_000 else 2 if rows < 100_000 else 1
        return Choice(epochs, f"usual for {rows:,} rows")
    usual = 3 if rows < 100_000 else 2 if rows < 1_000_000 else 1
    steps = max(1, -(-rows // batch_size))
    epochs = min(10, max(usual, -(-_ENOUGH_STEPS // steps)))
    more = f", raised to reach {epochs * steps} steps" if epochs > usual else ""
    return Choice(epochs, f"usual for {rows:,} rows{more}")


def choose_batch_size(request: TrainRequest, facts: DatasetFacts) -> Choice[int]:
    """A batch size with which the task usually learns well."""
    if requested := requested_batch_size(request):
        return Choice(requested, _batch_reason(request))
    rows = facts.splits.get("train", facts.rows)
    if facts.task == "two-tower":
        return Choice(64, "larger batches provide more in-batch negatives")
    if facts.task == "causal":
        return Choice(16, "usual for instruction tuning")
    if rows < 1000:
        return Choice(16, f"larger batches would give few steps with {rows:,} rows")
    return Choice(32, "usual for classifiers")


def _batch_reason(request: TrainRequest) -> str:
    """How the requested batch size came about, in Hugging Face's terms where it was given in them."""
    each = request.per_device_train_batch_size
    if each is None:
        return AS_REQUESTED
    in_all, times = (request.processes or 1) * nodes_of(request), request.gradient_accumulation_steps or 1
    parts = [f"{each} per process", f"{in_all} {'process' if in_all == 1 else 'processes'}", f"{times} accumulated"]
    return " x ".join(parts)


def choose_lr(request: TrainRequest, task: str, model: ModelFacts, lora: bool) -> Choice[float]:
    """Higher for small models, and higher still for adapters."""
    if request.lr is not None:
        return Choice(request.lr, AS_REQUESTED)
    if lora:
        return Choice(2e-4, "usual for adapters")
    if task == "two-tower":
        return Choice(5e-5 if model.hidden <= 512 else 2e-5, f"usual for a retriever of width {model.hidden}")
    if task == "causal":
        return Choice(5e-5 if model.parameters < 500_000_000 else 1e-5, f"usual for {model.parameters:,} weights")
    if model.hidden <= 512:
        return Choice(1e-4, f"usual for a narrow encoder (width {model.hidden})")
    return Choice(3e-5 if model.hidden < 1024 else 2e-5, f"usual for an encoder of width {model.hidden}")


def choose_schedule(request: TrainRequest) -> Choice[str]:
    """The learning-rate schedule."""
    if request.schedule:
        return Choice(request.schedule, AS_REQUESTED)
    return Choice("linear", "Hugging Face's default")


def choose_lora(request: TrainRequest, task: str, model: ModelFacts, full_fits: bool) -> Choice[bool]:
    """Adapters for large language models, and if training all weights would not fit into memory."""
    if request.lora is not None:
        return Choice(request.lora, AS_REQUESTED)
    if request.load_in_4bit:
        return Choice(True, "weights in 4 bits are not trained; adapters are")
    if task != "causal":
        return Choice(False, f"{task} trains all weights")
    if request.lora_r or request.lora_alpha or request.lora_dropout or request.lora_target_modules:
        return Choice(True, "LoRA settings were given")
    if not full_fits:
        return Choice(True, "training all weights would not fit into memory")
    if model.parameters > _LARGE:
        return Choice(True, f"usual for a model with {model.parameters:,} weights")
    return Choice(False, f"all {model.parameters:,} weights can be trained on this machine")


def lora_options(request: TrainRequest) -> dict[str, object]:
    """The options for peft."""
    return {
        "r": request.lora_r or 16,
        "lora_alpha": request.lora_alpha or 2 * (request.lora_r or 16),
        "lora_dropout": 0.05 if request.lora_dropout is None else request.lora_dropout,
        "target_modules": list(request.lora_target_modules) or "all-linear",
    }


def tower_options(request: TrainRequest) -> dict[str, object]:
    """The options of the two-tower task."""
    found: dict[str, object] = {}
    if request.towers:
        found["towers"] = request.towers
    if request.temperature is not None:
        found["temperature"] = request.temperature
    if request.mining:
        found["mining"] = {}
    return found


def class_weights(request: TrainRequest, labels: Mapping[str, int], multi_label: bool) -> list[float] | None:
    """A weight per class, so that rare classes count as much as common ones; None for equal weights."""
    if request.class_weights != "balanced" or multi_label or not labels:
        return None
    whole = sum(labels.values())
    return [round(whole / (len(labels) * max(1, count)), 6) for count in labels.values()]
