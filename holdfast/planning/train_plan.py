"""Makes the plan of a training run: every setting of the engine, each with its reason.

Reads: request, machine, dataset, model. Leaves: `plan.json`. Pure functions; what is measured later replaces what is
reckoned here.
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from holdfast.core.errors import MachineError, set_to
from holdfast.core.facts import DatasetFacts, MachineFacts, ModelFacts
from holdfast.core.plan import Choice, Plan
from holdfast.core.request import TrainRequest, nodes_of
from holdfast.core.text import human_bytes, plural
from holdfast.planning import choices
from holdfast.planning.memory_model import MemoryNeed, fits, need_of, room_of
from holdfast.planning.parallel import cards_of, choose_processes

_USUAL_LENGTH = {"classify": 512, "causal": 2048, "two-tower": 256}
_MOST_MICRO_TOKENS = 16_384
_FEWEST_MICRO_TOKENS = 256
_ASKED = "as asked"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainPlan:
    """How a run will be done."""

    task: str
    model: ModelFacts
    choices: Mapping[str, Choice[Any]]  # by the names of the engine's settings, and "max_length"
    options: Mapping[str, object] = field(default_factory=dict)  # the task's own
    need: MemoryNeed
    free_bytes: int | None

    def settings(self, request: TrainRequest, prepared: str, run: str) -> dict[str, object]:
        """What the engine is told."""
        chosen = {name: choice.value for name, choice in self.choices.items() if name in _SETTINGS}
        given = {
            "task": self.task,
            "model": self.model.folder,
            "prepared": prepared,
            "run": run,
            "seed": request.seed,
            "max_steps": request.max_steps,
            "eval_steps": request.eval_steps,
            "keep": request.keep,
            "save_seconds": request.save_seconds,
            "options": dict(self.options),
        }
        return {**given, **chosen}

    def as_plan(self) -> Plan:
        """The same in the words that hazards know."""
        value = {name: choice.value for name, choice in self.choices.items()}
        return Plan(
            device=value["device"],
            precision=value["precision"],
            threads=value["threads"],
            gradient_checkpointing=value["gradient_checkpointing"],
            compile=value["compile"],
        )

    def with_choices(self, more: Mapping[str, Choice[Any]]) -> "TrainPlan":
        """The plan with some settings chosen anew."""
        return dataclasses.replace(self, choices={**self.choices, **more})


_SETTINGS = (
    *("epochs", "batch_size", "lr", "schedule", "warmup_ratio", "weight_decay", "max_grad_norm"),
    *("device", "precision", "threads", "micro_tokens", "packing", "compile", "gradient_checkpointing"),
    *("processes", "shard"),  # where there is more than one
)


def make_plan(
    request: TrainRequest,
    machine: MachineFacts,
    dataset: DatasetFacts,
    model: ModelFacts,
    *,
    longest_tokens: int | None = None,
    largest_step_tokens: int | None = None,
) -> TrainPlan:
    """Choose every setting; refuse what cannot fit, with the numbers. Lengths are exact once texts are tokenized."""
    task = dataset.task
    choices.require_fitting(task, model)
    device = choices.choose_device(request, machine)
    precision = choices.choose_precision(request, machine, device.value)
    batch_size = choices.choose_batch_size(request, dataset, device.value)
    processes = choose_processes(request, machine, device.value, batch_size.value)
    free = free_memory(machine, device.value, processes.value)
    longest = longest_tokens or longest_text(request, dataset, model)
    fitting = _Fitting(request, model, task, device.value, processes.value, longest, free, largest_step_tokens)
    nodes = nodes_of(request)
    lora = choices.choose_lora(request, task, model, fitting.smallest_fits(lora=False))
    micro, checkpointing, shard, need = fitting.choose(lora.value)
    options: dict[str, object] = {}
    if task == "causal" and lora.value:
        options["lora"] = choices.lora_options(request)
    if task == "two-tower":
        options |= choices.tower_options(request)
    if weights := choices.class_weights(request, dataset.labels, dataset.multi_label):
        options["class_weights"] = weights
    chosen: dict[str, Choice[Any]] = {
        "model": Choice(model.name, _model_reason(request, model, task)),
        "epochs": choices.choose_epochs(request, dataset, batch_size.value),
        "batch_size": batch_size,
        "lr": choices.choose_lr(request, task, model, lora.value),
        "schedule": choices.choose_schedule(request, task),
        "warmup_ratio": _given(request.warmup_ratio, 0.06, "a short rise keeps the first steps calm"),
        "weight_decay": _given(request.weight_decay, 0.01, "usual with AdamW"),
        "max_grad_norm": _given(request.max_grad_norm, 1.0, "HF's default"),
        "device": device,
        "precision": precision,
        "threads": choices.choose_threads(request, machine, processes.value),
        "micro_tokens": micro,
        "gradient_checkpointing": checkpointing,
        "packing": Choice(True, "no work on padding, where the model's attention allows"),
        "compile": _given(request.torch_compile, False, "not proven to be faster here"),
    }
    if processes.value * nodes > 1:
        chosen |= {"processes": processes, "shard": shard}
    if nodes > 1:
        all_words = f"{nodes * processes.value} processes in all, which share each step"
        chosen["nodes"] = Choice(nodes, f"as asked; {all_words}")
    if task == "causal":
        chosen["lora"] = lora
    if request.max_steps:
        chosen["epochs"] = Choice(chosen["epochs"].value, "not used: max_steps says where the run ends")
        chosen["max_steps"] = Choice(request.max_steps, _ASKED)
    return TrainPlan(task=task, model=model, choices=chosen, options=options, need=need, free_bytes=free)


def free_memory(machine: MachineFacts, device: str, processes: int = 1) -> int | None:
    """What the run may take: of each card, or of the machine."""
    if device == "cuda":
        sizes = [gpu.free_bytes or gpu.memory_bytes for gpu in cards_of(machine)[:processes]]
        return min((size for size in sizes if size), default=None)
    known = [size for size in (machine.memory_free_bytes, machine.memory_bytes) if size]
    return min(known, default=None)


def longest_text(request: TrainRequest, dataset: DatasetFacts, model: ModelFacts) -> int:
    """Tokens of the longest text that the model will be given, as far as is known before tokenizing."""
    limit = request.max_length or min(_USUAL_LENGTH[dataset.task], model.positions or 10**9)
    seen = [
        found.longest * (1.0 if found.unit == "tokens" else 2.0 if found.unit == "words" else 0.5)
        for found in dataset.lengths.values()
    ]
    return int(min(limit, sum(seen) if dataset.task == "causal" else max(seen, default=limit)) or limit)


class _Fitting:
    """Finds micro-batches that fit."""

    def __init__(
        self,
        request: TrainRequest,
        model: ModelFacts,
        task: str,
        device: str,
        processes: int,
        longest: int,
        free: int | None,
        largest_step: int | None,
    ):
        self._request, self._model, self._task, self._device = request, model, task, device
        self._processes, self._longest, self._free = processes, longest, free
        self._nodes = nodes_of(request)
        in_all = processes * self._nodes
        self._largest_part = -(-largest_step // in_all) if largest_step else None
        self._sharded = (False, True) if in_all > 1 else (False,)

    def smallest_fits(self, *, lora: bool) -> bool:
        """Whether it fits at all, with every means that keeps what is learned."""
        return fits(self._least(lora).bytes, self._free)

    def choose(self, lora: bool) -> tuple[Choice[int], Choice[bool], Choice[bool], MemoryNeed]:
        """The largest micro-batch that fits; activations computed twice, and weights parted, only where they must be.

        Gives the tokens of a micro-batch, whether activations are computed twice, whether weights are parted, the need.
        """
        asked = self._request.gradient_checkpointing
        again = (asked,) if asked is not None else (False, True)
        for shard, checkpointing in ((shard, twice) for shard in self._sharded for twice in again):
            tokens = self._request.micro_tokens or _MOST_MICRO_TOKENS
            while tokens >= min(_FEWEST_MICRO_TOKENS, self._request.micro_tokens or _FEWEST_MICRO_TOKENS):
                need = self._need(tokens, lora, checkpointing, shard)
                if fits(need.bytes, self._free):
                    sharing = self._sharing(shard, lora)
                    return self._micro(tokens, need), self._checkpointing(checkpointing), sharing, need
                if self._request.micro_tokens:
                    break
                tokens //= 2
        raise self._refusal(lora)

    def _least(self, lora: bool) -> MemoryNeed:
        needs = (self._need(_FEWEST_MICRO_TOKENS, lora, checkpointing=True, shard=shard) for shard in self._sharded)
        return min(needs, key=lambda need: need.bytes)

    def _need(self, tokens: int, lora: bool, checkpointing: bool, shard: bool) -> MemoryNeed:
        return need_of(
            self._model,
            min(tokens, self._largest_part or tokens),  # a step may hold less than a micro-batch could
            task=self._task,
            lora=lora,
            gradient_checkpointing=checkpointing,
            on_card=self._device == "cuda",
            longest_tokens=self._longest,
            processes=self._processes,
            nodes=self._nodes,
            shard=shard,
        )

    def _sharing(self, shard: bool, lora: bool) -> Choice[bool]:
        if not shard:
            return Choice(False, "each process has room for all weights")
        whole = self._need(_FEWEST_MICRO_TOKENS, lora, checkpointing=True, shard=False)
        where = "on a card" if self._device == "cuda" else f"for {plural(self._processes, 'process')}"
        return Choice(
            True,
            f"all weights in each process would need {human_bytes(whole.bytes)}, more than there is room {where} "
            f"({human_bytes(room_of(self._free or 0))}): each keeps a part of them (FSDP2)",
        )

    def _micro(self, tokens: int, need: MemoryNeed) -> Choice[int]:
        if self._request.micro_tokens:
            return Choice(tokens, _ASKED)
        free = f" of {human_bytes(self._free)} free" if self._free else ""
        because = f"about {human_bytes(need.bytes)}{free} will be needed"
        return Choice(tokens, because + ("" if tokens == _MOST_MICRO_TOKENS else "; larger ones would not fit"))

    def _checkpointing(self, value: bool) -> Choice[bool]:
        if self._request.gradient_checkpointing is not None:
            return Choice(value, _ASKED)
        return Choice(value, "without it the activations would not fit" if value else "the activations fit")

    def _refusal(self, lora: bool) -> MachineError:
        least = self._least(lora)
        place = "the GPU" if self._device == "cuda" else "this machine"
        advice = [set_to("max_length", max(8, self._longest // 2)), set_to("model", note="a smaller one")]
        if self._task == "causal" and not lora:
            advice.insert(0, set_to("lora", True, note="trains a few adapters instead of all weights"))
        if self._processes > 1 and self._device == "cpu":
            advice.insert(0, set_to("processes", self._processes // 2, note="fewer processes need less memory"))
        if self._device == "cuda":
            advice.append(set_to("device", "cpu", note="more memory, but slower"))
        return MachineError(
            f"this run would not fit into the memory of {place}",
            seen=f"{human_bytes(self._free or 0)} free, {human_bytes(room_of(self._free or 0))} of it usable; "
            f"at least {human_bytes(least.bytes)} needed: {human_bytes(least.weights)} for weights, gradients and "
            f"optimizer state, {human_bytes(least.activations)} for activations",
            try_next=advice,
            slug="cuda-oom" if self._device == "cuda" else "host-oom",
        )


def _given(asked: Any, usual: Any, because: str) -> Choice[Any]:
    return Choice(usual, because) if asked is None else Choice(asked, _ASKED)


def _model_reason(request: TrainRequest, model: ModelFacts, task: str) -> str:
    size = f"{model.parameters:,} weights, from {model.source}"
    if request.from_run:
        return f"of the earlier run; {size}"
    return f"{_ASKED}; {size}" if request.model else f"small and good for {task}; {size}"
