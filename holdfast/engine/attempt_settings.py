"""The settings of one attempt, with what the engine derives from them: every number of the training is here.

Only the methods that serve the torch backend import torch.
"""

import dataclasses
from contextlib import AbstractContextManager
from pathlib import Path

import msgspec

from holdfast.core.errors import RequestError
from holdfast.core.records import FILES
from holdfast.core.settings import EngineSettings


class AttemptSettings(EngineSettings):
    """Settings as `settings.json` holds them, on this machine and with this process's torch."""

    __slots__ = ()

    @property
    def is_on_cuda(self) -> bool:
        """Whether a CUDA GPU computes."""
        return self.device.startswith("cuda")

    @property
    def load_device(self) -> str:
        """Where a model is loaded: sharded weights go to the GPU one layer at a time."""
        return "cpu" if self.shard else self.device

    @property
    def uses_device_rng(self) -> bool:
        """Whether dropout uses the GPU's own generator, seeded for each micro-batch.

        CUDA's half-precision attention kernels can use no other. On MPS each mask from the CPU would be a copy that
        is waited for, dozens in a step.
        """
        return self.is_on_mps or (self.is_on_cuda and self.precision != "fp32")

    @property
    def is_on_mps(self) -> bool:
        """Whether the GPU of a Mac computes, by torch."""
        return self.device.startswith("mps")

    @property
    def worker_threads(self) -> int:
        """How many threads may each work on separate texts."""
        import torch

        return 1 if self.device != "cpu" else self.threads or torch.get_num_threads()

    def use_threads(self) -> None:
        """Use the planned number of threads, or else torch's default."""
        import torch

        if self.threads:
            torch.set_num_threads(self.threads)

    def autocast(self) -> AbstractContextManager[object]:
        """Compute in half precision where the plan says so; the weights stay in float32."""
        import torch

        device = self.device.partition(":")[0]
        return torch.autocast(device, torch.bfloat16, enabled=self.precision == "bf16")

    @property
    def prepared_path(self) -> Path:
        """The folder of the prepared shards."""
        return Path(self.prepared)


def read_attempt_settings(attempt: Path) -> AttemptSettings:
    """Read an attempt's settings; refuse unknown names."""
    content = (attempt / FILES[EngineSettings]).read_bytes()
    known = {field.name for field in dataclasses.fields(AttemptSettings)}
    if unknown := sorted(msgspec.json.decode(content, type=dict[str, msgspec.Raw]).keys() - known):
        raise RequestError(
            f"settings.json has unknown settings: {', '.join(unknown)}", found=f"known: {', '.join(sorted(known))}"
        )
    return msgspec.json.decode(content, type=AttemptSettings)
