"""What one attempt is to do, as written in its `settings.json`. Every number of the training is here."""

import dataclasses
import json
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path

import torch

from holdfast.core.errors import RequestError
from holdfast.core.runfolder import SETTINGS


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The settings of one attempt. The first block decides what is learned; the second only how fast and how safely."""

    task: str  # "classify" | "causal" | "two-tower"
    model: str  # folder of the model to start from
    prepared: str  # folder of the prepared shards
    run: str  # folder of the run
    seed: int = 42
    epochs: int = 3
    max_steps: int | None = None
    batch_size: int = 16  # examples of one optimizer step, however they are split
    lr: float = 5e-5
    weight_decay: float = 0.01
    warmup_ratio: float = 0.06
    schedule: str = "linear"  # "linear" | "cosine" | "constant"
    max_grad_norm: float = 1.0
    pool_batches: int = 1  # see engine.order
    eval_steps: int | None = None  # None: after each epoch
    keep: str = "best"  # "best" | "last": which weights are exported
    options: Mapping[str, object] = field(default_factory=dict)  # the task's own

    device: str = "cpu"
    precision: str = "fp32"  # "fp32" | "bf16"
    threads: int | None = None
    micro_tokens: int = 16_384  # tokens of one backward pass, at the most
    packing: bool = True  # work on real tokens only, where the model's attention allows
    compile: bool = False
    gradient_checkpointing: bool = False
    processes: int = 1  # how many train together; torchrun has the say (see engine.ranks)
    shard: bool = False  # each process keeps a part of the weights, for models that do not fit one
    save_seconds: float = 60.0  # work at stake, at the most

    @property
    def is_on_card(self) -> bool:
        """Whether a CUDA card computes."""
        return self.device.startswith("cuda")

    @property
    def load_device(self) -> str:
        """Where a model is put when it is loaded: weights that are dealt out go to a card one layer at a time."""
        return "cpu" if self.shard else self.device

    @property
    def card_draws(self) -> bool:
        """Whether a card draws what is dropped, by its own generator: its half-precision attention can do so."""
        return self.is_on_card and self.precision != "fp32"

    @property
    def hands(self) -> int:
        """How many cores may each work on texts of their own."""
        return 1 if self.is_on_card or self.device != "cpu" else self.threads or torch.get_num_threads()

    def use_threads(self) -> None:
        """Take the threads the plan gives; torch's own choice otherwise."""
        if self.threads:
            torch.set_num_threads(self.threads)

    def autocast(self) -> AbstractContextManager[object]:
        """Compute in half precision where the plan says so; the weights stay whole."""
        device = self.device.partition(":")[0]
        return torch.autocast(device, torch.bfloat16, enabled=self.precision == "bf16")

    @property
    def prepared_path(self) -> Path:
        """Where the prepared shards lie."""
        return Path(self.prepared)


def read_settings(attempt: Path) -> Settings:
    """Read an attempt's settings; unknown names are refused."""
    given = json.loads((attempt / SETTINGS).read_text(encoding="utf-8"))
    known = {field.name for field in dataclasses.fields(Settings)}
    if unknown := sorted(set(given) - known):
        raise RequestError(
            f"settings.json has unknown names: {', '.join(unknown)}", seen=f"known: {', '.join(sorted(known))}"
        )
    return Settings(**given)
