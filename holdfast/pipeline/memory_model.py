"""Estimates the memory of a training run before it starts.

Only arithmetic over the shape of the model; the constants were measured, and measurements of the run replace the result
later. It must rather be too high than too low: an estimate that is too low costs a failed attempt, one that is too high
only a smaller micro-batch.
"""

from dataclasses import dataclass

from holdfast.core.facts import ModelFacts

_LIBRARIES_BYTES = 450_000_000  # torch and transformers in one process, measured on Linux
_WEIGHT, _GRADIENT, _ADAM = 4, 4, 8  # bytes per trained weight, all in float32
_ROOM = 0.85  # of the free memory; the rest is for the system and for what this arithmetic leaves out
_LOGIT_ROWS = 1024  # the engine computes this many at once, so the vocabulary never meets a whole batch
_ADAPTED_SHARE = 0.03  # of the weights, added by LoRA of rank 16
_LAUNCHER_BYTES = 250_000_000  # torchrun, which watches the processes and computes nothing


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryNeed:
    """The memory that a run needs, by purpose."""

    libraries: int
    weights: int  # with gradients, Adam's moments and the copy for a checkpoint
    activations: int  # of one micro-batch in each process
    logits: int = 0

    @property
    def bytes(self) -> int:
        """The sum."""
        return self.libraries + self.weights + self.activations + self.logits


def need_of(
    model: ModelFacts,
    micro_tokens: int,
    *,
    task: str,
    lora: bool = False,
    gradient_checkpointing: bool = False,
    on_card: bool = False,
    longest_tokens: int = 512,
    processes: int = 1,
    nodes: int = 1,
    shard: bool = False,
) -> MemoryNeed:
    """Estimate the peak of all processes of this machine together; on GPUs, of one GPU, since each process has its own.

    With sharding, each process keeps a part of the weights and gathers one layer at a time.
    """
    trained = int(model.parameters * _ADAPTED_SHARE) if lora else model.parameters
    state = trained * (_WEIGHT + _GRADIENT + _ADAM)
    if lora:
        state += model.parameters * _WEIGHT
    copy = 0 if on_card else trained * (_WEIGHT + _ADAM)  # a checkpoint is copied in host memory, not on the GPU
    width = 16 * model.hidden + 3 * model.inner  # floats that one layer keeps per token for its backward pass
    kept_layers = 1 if gradient_checkpointing else max(1, model.layers)
    each = 4  # also in bf16, where norms and residuals stay fp32: 3.9 to 4.3 bytes per float measured on an H200
    per_token = each * (kept_layers * width + (model.layers * model.hidden if gradient_checkpointing else 0))
    tokens = max(micro_tokens, longest_tokens)
    logits = 3 * 4 * min(_LOGIT_ROWS, tokens) * model.vocabulary if task == "causal" else 0
    here = 1 if on_card else processes  # processes that share this memory
    if shard:
        gathered = 2 * _WEIGHT * (model.parameters // max(1, model.layers) + model.vocabulary * model.hidden)
        # Every process once holds all weights while loading, and main memory is not given back to the system:
        # SmolLM2-135M in two processes took 8.6 GB, 12 bytes per weight and process more than sharding alone needs.
        kept = 0 if on_card else trained * (_WEIGHT + _ADAM)
        state = state * here // (processes * nodes) + here * (gathered + kept)
    else:
        state *= here
    libraries = 600_000_000 if on_card else here * _LIBRARIES_BYTES + (_LAUNCHER_BYTES if processes * nodes > 1 else 0)
    return MemoryNeed(
        libraries=libraries, weights=state + copy, activations=here * tokens * per_token, logits=here * logits
    )


def checkpoint_bytes(model: ModelFacts, *, lora: bool) -> int:
    """The minimum size of a checkpoint on disk: weights and Adam's moments; almost nothing for adapters."""
    return 0 if lora else model.parameters * (_WEIGHT + _ADAM)


def reading_bytes(model: ModelFacts, tokens: int, precision: str = "fp32") -> int:
    """Memory for a forward pass over this many tokens, as in an evaluation; measured with MiniLM: 61 kB per token."""
    return (2 if precision == "bf16" else 4) * tokens * (2 * model.inner + 32 * model.hidden)


def room_of(free_bytes: int) -> int:
    """The part of the free memory that a run may use."""
    return int(_ROOM * free_bytes)


def fits(need_bytes: int, free_bytes: int | None) -> bool:
    """Whether a need fits into the free memory; True if that is unknown."""
    return free_bytes is None or need_bytes <= room_of(free_bytes)
