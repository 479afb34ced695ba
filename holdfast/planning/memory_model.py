"""How much memory a run will need, before any of it is taken. Pure arithmetic; measured figures replace it later."""

from dataclasses import dataclass

from holdfast.core.facts import ModelFacts

_LIBRARIES_BYTES = 450_000_000  # torch and transformers in one process, measured on Linux
_WEIGHT, _GRADIENT, _ADAM = 4, 4, 8  # bytes of one weight in training
_ROOM = 0.85  # of what is free; the rest is for the system and for what this arithmetic leaves out
_LOGIT_ROWS = 1024  # that the engine computes at once
_ADAPTED_SHARE = 0.03  # of the weights, that LoRA of rank 16 adds
_LAUNCHER_BYTES = 250_000_000  # torchrun, which looks after several processes and computes nothing


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryNeed:
    """What a run takes, by what takes it."""

    libraries: int
    weights: int  # with gradients, Adam's moments and the copy a save makes
    activations: int  # of one micro-batch in each process
    logits: int = 0

    @property
    def bytes(self) -> int:
        """All of it."""
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
    """Forecast the peak of all processes of the machine together, or of one card's memory: there each has its own.

    Sharded, each process keeps its part of the weights, and gathers one layer at a time to compute with it.
    """
    trained = int(model.parameters * _ADAPTED_SHARE) if lora else model.parameters
    state = trained * (_WEIGHT + _GRADIENT + _ADAM)
    if lora:
        state += model.parameters * _WEIGHT
    copy = 0 if on_card else trained * (_WEIGHT + _ADAM)  # a save copies in host memory
    width = 16 * model.hidden + 3 * model.inner  # floats that one layer keeps for one token
    kept_layers = 1 if gradient_checkpointing else max(1, model.layers)
    each = 4  # also in bf16, where norms and residuals stay fp32: 3.9 to 4.3 bytes a float measured on an H200
    per_token = each * (kept_layers * width + (model.layers * model.hidden if gradient_checkpointing else 0))
    tokens = max(micro_tokens, longest_tokens)
    logits = 3 * 4 * min(_LOGIT_ROWS, tokens) * model.vocabulary if task == "causal" else 0
    here = 1 if on_card else processes  # of the processes, that share this memory
    if shard:
        gathered = 2 * _WEIGHT * (model.parameters // max(1, model.layers) + model.vocabulary * model.hidden)
        # Main memory is not given back: SmolLM2-135M in two processes took 8.6 GB, 12 bytes a weight and process more.
        kept = 0 if on_card else trained * (_WEIGHT + _ADAM)
        state = state * here // (processes * nodes) + here * (gathered + kept)
    else:
        state *= here
    libraries = 600_000_000 if on_card else here * _LIBRARIES_BYTES + (_LAUNCHER_BYTES if processes * nodes > 1 else 0)
    return MemoryNeed(
        libraries=libraries, weights=state + copy, activations=here * tokens * per_token, logits=here * logits
    )


def checkpoint_bytes(model: ModelFacts, *, lora: bool) -> int:
    """What one checkpoint takes on the disk at least: weights and Adam's moments; of adapters next to nothing."""
    return 0 if lora else model.parameters * (_WEIGHT + _ADAM)


def reading_bytes(model: ModelFacts, tokens: int, precision: str = "fp32") -> int:
    """What reading so many tokens at once takes, as an evaluation does; measured with MiniLM at 61 kB a token."""
    return (2 if precision == "bf16" else 4) * tokens * (2 * model.inner + 32 * model.hidden)


def room_of(free_bytes: int) -> int:
    """What a run may take of what is free."""
    return int(_ROOM * free_bytes)


def fits(need_bytes: int, free_bytes: int | None) -> bool:
    """Whether a need fits into what is free; True where nobody knows what is."""
    return free_bytes is None or need_bytes <= room_of(free_bytes)
