"""Makes the plan of a training run from its request, machine, dataset and model: every setting with its reason.

Pure functions. Later measurements replace the estimates made here.
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from holdfast.core.errors import MachineError, set_to
from holdfast.core.facts import DatasetFacts, MachineFacts, ModelFacts
from holdfast.core.plan import DEFAULT_MICRO_TOKENS, USUAL_LENGTH, Choice, Plan
from holdfast.core.records import MemoryEstimate, Proof, RunPlan
from holdfast.core.settings import BATCH_PARTS, PROCESS_SETTINGS, SETTINGS, EngineSettings, TrainRequest, nodes_of
from holdfast.core.text import human_bytes, plural
from holdfast.planning import choices
from holdfast.planning.choices import AS_REQUESTED
from holdfast.planning.memory_model import MemoryNeed, fits, need_of, room_of
from holdfast.planning.parallel import cards_of, choose_processes

_FEWEST_MICRO_TOKENS = 256  # a plan starts with no fewer: smaller micro-batches leave most of a processor idle


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainPlan:
    """How a run will be done."""

    task: str
    model: ModelFacts
    choices: Mapping[str, Choice[Any]]  # by the names of the engine's settings, and "max_length"
    options: Mapping[str, object] = field(default_factory=dict)  # of the task
    need: MemoryNeed
    free_bytes: int | None

    def as_record(self, request: TrainRequest, run: Path) -> RunPlan:
        """What plan.json keeps: every choice with its reason, and the engine's settings that follow from them."""
        value = {name: choice.value for name, choice in self.choices.items()}
        places = {"model": self.model.folder, "prepared": str(run / "prepared"), "run": str(run)}
        known = {one.name for one in dataclasses.fields(EngineSettings)}
        settings = EngineSettings(
            **{
                **{name: given for name in SETTINGS if (given := getattr(request, name)) is not None},
                **{name: one for name, one in value.items() if name in known},
                **places,
                **dict.fromkeys(BATCH_PARTS),  # the batch size has them
                "task": self.task,
                "options": dict(self.options),
            }
        )
        memory = MemoryEstimate(
            need_bytes=self.need.bytes,
            libraries_bytes=self.need.libraries,
            free_bytes=self.free_bytes,
            is_of_card=str(value["device"]).startswith("cuda"),
        )
        return RunPlan(
            task=self.task,
            model=self.model,
            choices=self.choices,
            settings=settings,
            memory=memory,
            processes=value.get("processes", 1),
            nodes=value.get("nodes", 1),
        )

    def as_plan(self) -> Plan:
        """The same plan in the settings that hazards know."""
        value = {name: choice.value for name, choice in self.choices.items()}
        return Plan(**{one.name: value[one.name] for one in dataclasses.fields(Plan)})

    def with_choices(self, more: Mapping[str, Choice[Any]]) -> "TrainPlan":
        """The plan with some settings replaced."""
        return dataclasses.replace(self, choices={**self.choices, **more})


def make_plan(
    request: TrainRequest,
    machine: MachineFacts,
    dataset: DatasetFacts,
    model: ModelFacts,
    *,
    longest_tokens: int | None = None,
    largest_step_tokens: int | None = None,
) -> TrainPlan:
    """Choose every setting; refuse a run that cannot fit into memory. Lengths are exact once texts are tokenized."""
    task = dataset.task
    choices.require_fitting(task, model)
    device = choices.choose_device(request, machine)
    precision = choices.choose_precision(request, machine, device.value)
    batch_size = choices.choose_batch_size(request, dataset)
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
        "schedule": choices.choose_schedule(request),
        "warmup_ratio": _given(request.warmup_ratio, 0.06, "a short warm-up stabilizes the first steps"),
        "weight_decay": _given(request.weight_decay, 0.01, "usual with AdamW"),
        "max_grad_norm": _given(request.max_grad_norm, 1.0, "the default of Hugging Face"),
        "device": device,
        "precision": precision,
        "threads": choices.choose_threads(request, machine, processes.value),
        "micro_tokens": micro,
        "gradient_checkpointing": checkpointing,
        "packing": Choice(True, "avoids work on padding, if the model's attention allows it"),
        "compile": _given(request.compile, False, "not proven faster on this machine"),
    }
    if processes.value * nodes > 1:
        chosen |= {"processes": processes, "shard": shard}
    if nodes > 1:
        chosen["nodes"] = Choice(nodes, f"{AS_REQUESTED}; {nodes * processes.value} processes in total share each step")
    if task == "causal":
        chosen["lora"] = lora
    if request.max_steps:
        chosen["epochs"] = Choice(chosen["epochs"].value, "not used: the maximum number of steps decides")
        chosen["max_steps"] = Choice(request.max_steps, AS_REQUESTED)
    return TrainPlan(task=task, model=model, choices=chosen, options=options, need=need, free_bytes=free)


def proven_settings(plan: RunPlan, proof: Proof | None) -> EngineSettings:
    """The engine's settings as planned, with what the proof changed."""
    return dataclasses.replace(plan.settings, **_still_proven(plan, proof.settings)) if proof else plan.settings


def proven_choices(plan: RunPlan, proof: Proof | None) -> Mapping[str, Choice[Any]]:
    """Every choice with its reason, as planned or as measured by the proof."""
    return {**plan.choices, **_still_proven(plan, proof.choices)} if proof else plan.choices


def _still_proven(plan: RunPlan, proven: Mapping[str, Any]) -> Mapping[str, Any]:
    """A proof with another number of processes says nothing about how they share the machine."""
    if not plan.changed_after_attempt:
        return proven
    return {name: value for name, value in proven.items() if name not in PROCESS_SETTINGS}


def keep_learning(earlier: RunPlan, plan: RunPlan, changed_after_attempt: int) -> RunPlan:
    """The earlier plan of a run that has begun, with what a new number of processes changes: it learns the same."""
    settings, choices = dataclasses.asdict(earlier.settings), dict(earlier.choices)
    settings |= {"run": plan.settings.run, "prepared": plan.settings.prepared}
    is_changed = (earlier.processes, earlier.nodes) != (plan.processes, plan.nodes)
    if is_changed:
        new = dataclasses.asdict(plan.settings)
        settings |= {name: new[name] for name in PROCESS_SETTINGS if name in new}
        choices = {name: choice for name, choice in choices.items() if name not in PROCESS_SETTINGS}
        choices |= {name: choice for name, choice in plan.choices.items() if name in PROCESS_SETTINGS}
    return msgspec.structs.replace(
        plan,
        settings=EngineSettings(**settings),
        choices=choices,
        changed_after_attempt=changed_after_attempt if is_changed else earlier.changed_after_attempt,
    )


def free_memory(machine: MachineFacts, device: str, processes: int = 1) -> int | None:
    """Free memory for the run: of each GPU, or of the machine."""
    if device == "cuda":
        sizes = [gpu.free_bytes or gpu.memory_bytes for gpu in cards_of(machine)[:processes]]
        return min((size for size in sizes if size), default=None)
    known = [size for size in (machine.memory_free_bytes, machine.memory_bytes) if size]
    return min(known, default=None)


def longest_text(request: TrainRequest, dataset: DatasetFacts, model: ModelFacts) -> int:
    """Estimated tokens of the longest text, before tokenizing."""
    limit = request.max_length or min(USUAL_LENGTH[dataset.task], model.positions or 10**9)
    seen = [
        found.longest * (1.0 if found.unit == "tokens" else 2.0 if found.unit == "words" else 0.5)
        for found in dataset.lengths.values()
    ]
    return int(min(limit, sum(seen) if dataset.task == "causal" else max(seen, default=limit)) or limit)


class _Fitting:
    """Finds micro-batches that fit into memory."""

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
        """Whether the run fits at all, by any means that does not change what the model learns."""
        return fits(self._least(lora).bytes, self._free)

    def choose(self, lora: bool) -> tuple[Choice[int], Choice[bool], Choice[bool], MemoryNeed]:
        """Tokens per micro-batch, gradient checkpointing, sharding, and the memory that they need together.

        The order of the search is the order of the costs: a smaller micro-batch costs almost nothing, recomputing
        activations a third of the speed, and sharding the weights communication in every layer. So checkpointing and
        sharding are only chosen if even the smallest micro-batch would not fit without them.
        """
        asked = self._request.gradient_checkpointing
        again = (asked,) if asked is not None else (False, True)
        for shard, checkpointing in ((shard, twice) for shard in self._sharded for twice in again):
            tokens = self._request.micro_tokens or DEFAULT_MICRO_TOKENS
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
            min(tokens, self._largest_part or tokens),  # a step may be smaller than a micro-batch
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
            return Choice(False, "all weights fit into each process")
        whole = self._need(_FEWEST_MICRO_TOKENS, lora, checkpointing=True, shard=False)
        where = "on a GPU" if self._device == "cuda" else f"for {plural(self._processes, 'process')}"
        return Choice(
            True,
            f"all weights in each process would need {human_bytes(whole.bytes)}, more than is usable {where} "
            f"({human_bytes(room_of(self._free or 0))}); each process keeps a part of them (FSDP2)",
        )

    def _micro(self, tokens: int, need: MemoryNeed) -> Choice[int]:
        if self._request.micro_tokens:
            return Choice(tokens, AS_REQUESTED)
        free = f" of {human_bytes(self._free)} free" if self._free else ""
        because = f"needs about {human_bytes(need.bytes)}{free}"
        return Choice(
            tokens, because + ("" if tokens == DEFAULT_MICRO_TOKENS else "; larger micro-batches would not fit")
        )

    def _checkpointing(self, value: bool) -> Choice[bool]:
        if self._request.gradient_checkpointing is not None:
            return Choice(value, AS_REQUESTED)
        return Choice(value, "the activations would not fit without it" if value else "the activations fit")

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
            found=f"{human_bytes(self._free or 0)} free, {human_bytes(room_of(self._free or 0))} of it usable; "
            f"at least {human_bytes(least.bytes)} needed: {human_bytes(least.weights)} for weights, gradients and "
            f"optimizer state, {human_bytes(least.activations)} for activations",
            try_next=advice,
            slug="cuda-oom" if self._device == "cuda" else "host-oom",
        )


def _given(asked: Any, usual: Any, because: str) -> Choice[Any]:
    return Choice(usual, because) if asked is None else Choice(asked, AS_REQUESTED)


def _model_reason(request: TrainRequest, model: ModelFacts, task: str) -> str:
    size = f"{model.parameters:,} weights, from {model.source}"
    if request.from_run:
        return f"the model of the earlier run; {size}"
    return f"{AS_REQUESTED}; {size}" if request.model else f"small and good for {task}; {size}"
