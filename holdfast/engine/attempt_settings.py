"""The settings of one attempt, as its `settings.json` holds them: every number of the training is here."""

import dataclasses
import json
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path

import torch

from holdfast.core.errors import RequestError
from holdfast.core.plan import DEFAULT_MICRO_TOKENS
from holdfast.core.runfolder import SETTINGS


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptSettings:
    """The first block decides what is learned, the second only how fast and how safely."""

    task: str  # "classify" | "causal" | "two-tower"
    model: str  # folder of the model to start from
    prepared: str  # folder of the prepared shards
    run: str  # folder of the run
    seed: int = 42
    epochs: int = 3
    max_steps: int | None = None
    batch_size: int = 16  # examples of one optimizer step, however they are split into micro-batches
    lr: float = 5e-5
    weight_decay: float = 0.01
    warmup_ratio: float = 0.06
    schedule: str = "linear"  # "linear" | "cosine" | "constant"
    max_grad_norm: float = 1.0
    pool_batches: int = 1  # see engine.data_order
    eval_steps: int | None = None  # None: after each epoch
    keep: str = "best"  # "best" | "last": which weights are exported
    options: Mapping[str, object] = field(default_factory=dict)  # the task's own

    device: str = "cpu"
    precision: str = "fp32"  # "fp32" | "bf16"
    threads: int | None = None
    micro_tokens: int = DEFAULT_MICRO_TOKENS  # maximum tokens of one backward pass
    packing: bool = True  # compute without padding, where the model's attention allows it
    compile: bool = False
    gradient_checkpointing: bool = False
    processes: int = 1  # for the record: torchrun decides (see engine.ranks)
    shard: bool = False  # FSDP, for models that do not fit in one process
    save_seconds: float = 60.0  # maximum work at stake

    @property
    def is_on_cuda(self) -> bool:
        """Whether a CUDA GPU computes."""
        return self.device.startswith("cuda")

    @property
    def load_device(self) -> str:
        """Where a model is loaded: sharded weights go to the GPU one layer at a time."""
        return "cpu" if self.shard else self.device

    @property
    def uses_cuda_rng(self) -> bool:
        """Whether dropout uses the GPU's own generator, as its half-precision attention kernels do."""
        return self.is_on_cuda and self.precision != "fp32"

    @property
    def worker_threads(self) -> int:
        """How many threads may each work on separate texts."""
        return 1 if self.is_on_cuda or self.device != "cpu" else self.threads or torch.get_num_threads()

    def use_threads(self) -> None:
        """Use the planned number of threads, or else torch's default."""
        if self.threads:
            torch.set_num_threads(self.threads)

    def autocast(self) -> AbstractContextManager[object]:
        """Compute in half precision where the plan says so; the weights stay in float32."""
        device = self.device.partition(":")[0]
        return torch.autocast(device, torch.bfloat16, enabled=self.precision == "bf16")

    @property
    def prepared_path(self) -> Path:
        """The folder of the prepared shards."""
        return Path(self.prepared)


def read_attempt_settings(attempt: Path) -> AttemptSettings:
    """Read an attempt's settings; refuse unknown names."""
    given = json.loads((attempt / SETTINGS).read_text(encoding="utf-8"))
    known = {field.name for field in dataclasses.fields(AttemptSettings)}
    if unknown := sorted(set(given) - known):
        raise RequestError(
            f"settings.json has unknown settings: {', '.join(unknown)}", seen=f"known: {', '.join(sorted(known))}"
        )
    return AttemptSettings(**given)
