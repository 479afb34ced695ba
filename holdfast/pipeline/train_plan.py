"""Makes the plan of a training run from its request, machine, data and model: every setting with its reason.

Pure functions. Later measurements replace the estimates made here.
"""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from holdfast.core.errors import MachineError, set_to
from holdfast.core.facts import DatasetFacts, MachineFacts, ModelFacts
from holdfast.core.plan import DEFAULT_MICRO_TOKENS, Choice
from holdfast.core.records import MemoryEstimate, Proof, RunPlan
from holdfast.core.settings import (
    BATCH_PARTS,
    COMPUTING_SETTINGS,
    PROCESS_SETTINGS,
    SETTINGS,
    EngineSettings,
    TrainRequest,
    nodes_of,
    requested_batch_size,
)
from holdfast.core.text import human_bytes, plural
from holdfast.data.amounts import Amounts
from holdfast.pipeline import choices
from holdfast.pipeline.choices import AS_REQUESTED
from holdfast.pipeline.memory_model import MemoryNeed, fits, need_of, room_of
from holdfast.pipeline.parallel import cards_of, choose_processes

_SHORTEST_TEXT = 8  # tokens
_FEWEST_MICRO_TOKENS = 256  # a plan starts with no fewer: smaller micro-batches leave most of a processor idle


def make_plan(
    request: TrainRequest,
    run: Path,
    machine: MachineFacts,
    dataset: DatasetFacts,
    model: ModelFacts,
    amounts: Amounts,
    prepared: Mapping[str, Choice[Any]] | None = None,
) -> RunPlan:
    """Choose every setting, next to what was chosen while the data was prepared; refuse a run that cannot fit."""
    task, nodes = dataset.task, nodes_of(request)
    choices.require_fitting(task, model)
    batch_size = choices.choose_batch_size(request, dataset)
    fitting = _Fitting(request, machine, task, model, batch_size.value, amounts)
    lora = choices.choose_lora(request, task, model, fitting.smallest_fits(lora=False))
    micro, checkpointing, shard, need = fitting.choose(lora.value)
    processes = fitting.processes
    chosen: dict[str, Choice[Any]] = {
        "model": Choice(model.name, _model_reason(request, model, task)),
        "epochs": choices.choose_epochs(request, dataset, batch_size.value),
        "batch_size": batch_size,
        "lr": choices.choose_lr(request, task, model, lora.value),
        "schedule": choices.choose_schedule(request),
        "warmup_ratio": _given(request.warmup_ratio, 0.06, "a short warm-up stabilizes the first steps"),
        "weight_decay": _given(request.weight_decay, 0.01, "usual with AdamW"),
        "max_grad_norm": _given(request.max_grad_norm, 1.0, "Hugging Face's default"),
        "device": fitting.device,
        "precision": choices.choose_precision(request, machine, fitting.device.value),
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
    chosen |= prepared or {}
    return RunPlan(
        task=task,
        model=model,
        choices=chosen,
        settings=_engine_settings(request, run, task, model, chosen, _options(request, dataset, lora.value)),
        memory=MemoryEstimate(
            need_bytes=need.bytes,
            libraries_bytes=need.libraries,
            free_bytes=fitting.free,
            is_of_card=fitting.device.value.startswith("cuda"),
        ),
        processes=processes.value,
        nodes=nodes,
    )


def require_possible(request: TrainRequest, machine: MachineFacts, task: str, model: ModelFacts) -> None:
    """Refuse a model that cannot fit even with the shortest texts, before its data is prepared."""
    shortest = Amounts(
        examples=0,
        tokens=0,
        longest_tokens=_SHORTEST_TEXT,
        largest_step_tokens=0,
        evaluation_tokens=0,
        report_tokens=0,
        largest_read_tokens=0,
    )
    enough = (request.processes or 1) * nodes_of(request)  # the batch size may not be chosen yet
    fitting = _Fitting(request, machine, task, model, requested_batch_size(request) or enough, shortest)
    lora = task == "causal" and request.lora is not False
    if not fitting.smallest_fits(lora=lora):
        raise fitting.refusal(lora)


def _options(request: TrainRequest, dataset: DatasetFacts, lora: bool) -> dict[str, object]:
    """The options of the task."""
    options: dict[str, object] = {}
    if dataset.task == "causal" and lora:
        options["lora"] = choices.lora_options(request)
    if dataset.task == "two-tower":
        options |= choices.tower_options(request)
    if weights := choices.class_weights(request, dataset.labels, dataset.multi_label):
        options["class_weights"] = weights
    return options


def _engine_settings(
    request: TrainRequest,
    run: Path,
    task: str,
    model: ModelFacts,
    chosen: Mapping[str, Choice[Any]],
    options: Mapping[str, object],
) -> EngineSettings:
    """The request with every choice in it, as the engine reads it."""
    known = {one.name for one in dataclasses.fields(EngineSettings)}
    return EngineSettings(
        **{
            **{name: given for name in SETTINGS if (given := getattr(request, name)) is not None},
            **{name: choice.value for name, choice in chosen.items() if name in known},
            **dict.fromkeys(BATCH_PARTS),  # the batch size has them
            **{"task": task, "options": dict(options)},
            **{"model": model.folder, "prepared": str(run / "prepared"), "run": str(run)},
        }
    )


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


def keep_learning(
    earlier: RunPlan, plan: RunPlan, changed_after_attempt: int, *, is_same_machine: bool = True
) -> RunPlan:
    """The plan of a run that has begun: it learns what its earlier plan says, and computes as before where it can.

    On another machine everything about computing is chosen again; with another number of processes or another backend,
    what depends on it.
    """
    before, now = dataclasses.asdict(earlier.settings), dataclasses.asdict(plan.settings)
    is_changed = _computed_by(earlier) != _computed_by(plan)
    again = {"run", "prepared"}
    if is_changed:
        again |= PROCESS_SETTINGS
    if not is_same_machine:
        again |= COMPUTING_SETTINGS
    choices = {name: choice for name, choice in earlier.choices.items() if name not in again}
    choices |= {name: choice for name, choice in plan.choices.items() if name in again}
    return msgspec.structs.replace(
        plan,
        settings=EngineSettings(**before | {name: now[name] for name in again if name in now}),
        choices=choices,
        changed_after_attempt=changed_after_attempt if is_changed else earlier.changed_after_attempt,
    )


def _computed_by(plan: RunPlan) -> tuple[int, int, str]:
    return plan.processes, plan.nodes, plan.settings.backend


def free_memory(machine: MachineFacts, device: str, processes: int = 1) -> int | None:
    """Free memory for the run: of each GPU, or of the machine."""
    if device == "cuda":
        sizes = [gpu.free_bytes or gpu.memory_bytes for gpu in cards_of(machine)[:processes]]
        return min((size for size in sizes if size), default=None)
    known = [size for size in (machine.memory_free_bytes, machine.memory_bytes) if size]
    return min(known, default=None)


class _Fitting:
    """Finds micro-batches that fit into memory."""

    def __init__(
        self,
        request: TrainRequest,
        machine: MachineFacts,
        task: str,
        model: ModelFacts,
        batch_size: int,
        amounts: Amounts,
    ):
        self._request, self._model, self._task, self._nodes = request, model, task, nodes_of(request)
        self.device = choices.choose_device(request, machine)
        self.processes = choose_processes(request, machine, self.device.value, batch_size)
        self.free = free_memory(machine, self.device.value, self.processes.value)
        self._longest = amounts.longest_tokens
        in_all = self.processes.value * self._nodes
        self._largest_part = -(-amounts.largest_step_tokens // in_all)
        self._sharded = (False, True) if in_all > 1 else (False,)

    def smallest_fits(self, *, lora: bool) -> bool:
        """Whether the run fits at all, by any means that does not change what the model learns."""
        return fits(self._least(lora).bytes, self.free)

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
                if fits(need.bytes, self.free):
                    sharing = self._sharing(shard, lora)
                    return self._micro(tokens, need), self._checkpointing(checkpointing), sharing, need
                if self._request.micro_tokens:
                    break
                tokens //= 2
        raise self.refusal(lora)

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
            on_card=self.device.value == "cuda",
            longest_tokens=self._longest,
            processes=self.processes.value,
            nodes=self._nodes,
            shard=shard,
        )

    def _sharing(self, shard: bool, lora: bool) -> Choice[bool]:
        if not shard:
            return Choice(False, "all weights fit into each process")
        whole = self._need(_FEWEST_MICRO_TOKENS, lora, checkpointing=True, shard=False)
        where = "on a GPU" if self.device.value == "cuda" else f"for {plural(self.processes.value, 'process')}"
        return Choice(
            True,
            f"all weights in each process would need {human_bytes(whole.bytes)}, more than is usable {where} "
            f"({human_bytes(room_of(self.free or 0))}); each process keeps a part of them (FSDP2)",
        )

    def _micro(self, tokens: int, need: MemoryNeed) -> Choice[int]:
        if self._request.micro_tokens:
            return Choice(tokens, AS_REQUESTED)
        free = f" of {human_bytes(self.free)} free" if self.free else ""
        because = f"needs about {human_bytes(need.bytes)}{free}"
        return Choice(
            tokens, because + ("" if tokens == DEFAULT_MICRO_TOKENS else "; larger micro-batches would not fit")
        )

    def _checkpointing(self, value: bool) -> Choice[bool]:
        if self._request.gradient_checkpointing is not None:
            return Choice(value, AS_REQUESTED)
        return Choice(value, "the activations would not fit without it" if value else "the activations fit")

    def refusal(self, lora: bool) -> MachineError:
        """Why the run does not fit, with numbers and advice."""
        least = self._least(lora)
        place = "the GPU" if self.device.value == "cuda" else "this machine"
        advice = [set_to("model", note="a smaller one")]
        if self._longest >= 16:
            advice.insert(0, set_to("max_length", self._longest // 2))
        if self._task == "causal" and not lora:
            advice.insert(0, set_to("lora", True, note="trains a few adapters instead of all weights"))
        if self.processes.value > 1 and self.device.value == "cpu":
            advice.insert(0, set_to("processes", self.processes.value // 2, note="fewer processes need less memory"))
        if self.device.value == "cuda":
            advice.append(set_to("device", "cpu", note="more memory, but slower"))
        return MachineError(
            f"this run would not fit into the memory of {place}",
            found=f"{human_bytes(self.free or 0)} free, {human_bytes(room_of(self.free or 0))} of it usable; "
            f"at least {human_bytes(least.bytes)} needed: {human_bytes(least.weights)} for weights, gradients and "
            f"optimizer state, {human_bytes(least.activations)} for activations",
            try_next=advice,
            slug="cuda-oom" if self.device.value == "cuda" else "host-oom",
        )


def _given(asked: Any, usual: Any, because: str) -> Choice[Any]:
    return Choice(usual, because) if asked is None else Choice(asked, AS_REQUESTED)


def _model_reason(request: TrainRequest, model: ModelFacts, task: str) -> str:
    size = f"{model.parameters:,} weights, from {model.source}"
    if request.from_run:
        return f"the model of the earlier run; {size}"
    return f"{AS_REQUESTED}; {size}" if request.model else f"small and good for {task}; {size}"
