"""The steps of a training run before its first attempt. Each reads what earlier steps left and leaves one new file.

    look machine.json, survey dataset.json, plan plan.json, check up doctor.json, prepare prepared/

A walk that was cut off is walked again: a step whose file is whole and still true costs nothing the second time.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from msgspec import to_builtins

from holdfast.core.artifacts import read_artifact, to_plain, write_artifact
from holdfast.core.env import cache_folder
from holdfast.core.errors import MachineError, RequestError, install, leave_out, set_to, type_command
from holdfast.core.facts import MachineFacts, ModelFacts
from holdfast.core.old_events import Events
from holdfast.core.plan import Choice
from holdfast.core.request import TrainRequest
from holdfast.core.runfolder import DATASET, DOCTOR, EVENTS, MACHINE, PLAN
from holdfast.data.amounts import amounts_of
from holdfast.data.data_request import DataRequest, Task
from holdfast.data.prepare import Prepared, PrepareOptions, prepare
from holdfast.data.survey_dataset import Survey, survey
from holdfast.data.survey_vectors import VectorSurvey
from holdfast.data.tokenizer import ModelTokenizer
from holdfast.doctor.checkup import Finding, check
from holdfast.machine.probe import ask_this_machine
from holdfast.machine.probe_runner import ProbeRunner
from holdfast.models.catalog import DEFAULT_FOR
from holdfast.models.resolve import Progress, require_model, resolve
from holdfast.models.shape import read_shape
from holdfast.models.store import ModelFolder
from holdfast.planning.presets import is_of_preset
from holdfast.planning.train_plan import TrainPlan, make_plan
from holdfast.runs.checkpoint_room import require_room

OnEvent = Callable[[str, Mapping[str, object]], None]

_TRIAL_SECONDS = 90.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Walked:
    """Where the walk has led: everything that the attempts need."""

    plan: TrainPlan
    settings: dict[str, object]
    prepared: Prepared
    machine: MachineFacts


class Story:
    """Tells what happens: to whoever listens, and to the run's events."""

    def __init__(self, run: Path, on_event: OnEvent):
        self._events, self._on_event = Events(run / EVENTS), on_event

    def tell(self, event: str, **details: object) -> None:
        """Write an event down and hand it on."""
        self._events.write(event, **details)
        self._on_event(event, details)

    def working(self, what: str, done: int, whole: int | None, unit: str = "") -> None:
        """Show how far something is; nothing of it is written down."""
        self._on_event("working", {"what": what, "done": done, "whole": whole, "unit": unit})


def walk(run: Path, request: TrainRequest, on_event: OnEvent) -> Walked:
    """Walk from the request to prepared data and a plan."""
    story = Story(run, on_event)
    asking = ask_this_machine(0.0)  # beside the survey; devices are tried below, where there are any
    try:
        if request.model:
            story.tell("phase", phase="model", words=request.model)
            require_model(request.model, story.working, offline=request.offline)
        story.tell("phase", phase="survey", words=f"reading {request.data}")
        surveyed = _survey(run, request, story)
        model = _model(request, surveyed, story)
        machine = _look(run, request, asking, story)
    finally:
        asking.close()
    story.tell("phase", phase="plan")
    plan = make_plan(request, machine, surveyed.facts, model)
    _check_up(run, machine, plan, story)
    require_room(run, plan)
    story.tell("phase", phase="prepare")
    prepared = _prepare(run, request, surveyed, model, story)
    amounts = amounts_of(prepared.folder, int(plan.choices["batch_size"].value))
    plan = make_plan(
        request,
        machine,
        surveyed.facts,
        model,
        longest_tokens=amounts.longest_tokens,
        largest_step_tokens=amounts.largest_step_tokens,
    ).with_choices(_prepared_choices(prepared))
    settings = plan.settings(request, str(run / "prepared"), str(run))
    write_artifact(run, PLAN, plan_file(plan, settings))
    story.tell("planned", choices=to_plain(plan.choices), task=plan.task)
    return Walked(plan=plan, settings=settings, prepared=prepared, machine=machine)


def plan_file(plan: TrainPlan, settings: Mapping[str, object]) -> dict[str, object]:
    """The plan as plan.json keeps it; what is proven is added later."""
    is_on_card = str(plan.choices["device"].value).startswith("cuda")
    forecast = {
        "seconds": None,
        "peak_bytes": None if is_on_card else plan.need.bytes,
        # As torch counts it: without what the driver takes for itself.
        "card_peak_bytes": plan.need.bytes - plan.need.libraries if is_on_card else None,
        "because": "reckoned from the model's size; nothing was measured yet",
    }
    return {
        "task": plan.task,
        "choices": plan.choices,
        "settings": settings,
        "model": plan.model,
        "measured": [],
        "forecast": forecast,
        "memory": {"need": plan.need, "free_bytes": plan.free_bytes},
    }


def read_plan(run: Path) -> dict[str, Any]:
    """The plan of a run; empty when there is none yet."""
    return read_artifact(run / PLAN)


def data_request(request: TrainRequest) -> DataRequest:
    """What is asked of the data."""
    task: Task | None = request.task  # type: ignore[assignment]  # one of the names that a request allows
    return DataRequest(
        path=Path(request.data),
        validation=Path(request.validation) if request.validation else None,
        test=Path(request.test) if request.test else None,
        negatives=Path(request.negatives) if request.negatives else None,
        task=task,
        text_columns=request.text_column,
        label_column=request.label_column,
        group_column=request.group_column,
        encoding=request.encoding,
        delimiter=request.delimiter,
        header=request.header,
        multi_label=request.multi_label,
        min_score=request.min_score,
        max_bad_share=request.max_bad_rows,
        validation_share=request.validation_share,
        test_share=request.test_share,
        seed=request.seed,
    )


def _survey(run: Path, request: TrainRequest, story: Story) -> Survey:
    found = survey(data_request(request), None, story.working)
    write_artifact(run, DATASET, found.facts)
    story.tell("surveyed", **_dataset_words(found))
    return found


def _dataset_words(found: Survey) -> dict[str, object]:
    facts = found.facts
    return {
        "task": facts.task,
        "form": facts.form,
        "rows": facts.rows,
        "splits": dict(facts.splits),
        "labels": len(facts.labels),
        "choices": to_plain(facts.choices),
        "warnings": list(facts.warnings),
        "bad_row_count": facts.bad_row_count,
    }


def _model(request: TrainRequest, surveyed: Survey, story: Story) -> ModelFacts:
    task = surveyed.facts.task
    if request.lora and task != "causal":
        raise RequestError(
            f"LoRA is only for causal models, not for {task}",
            setting="lora",
            try_next=[leave_out("lora"), set_to("task", "causal")],
        )
    if isinstance(surveyed, VectorSurvey) and not request.model:
        return ModelFacts(name="vectors", folder="", source="the vectors in the data")
    story.tell("phase", phase="model", words=request.model or DEFAULT_FOR[task])
    facts = read_shape(find_model(request, task, story.working, say=lambda words: story.tell("note", words=words)))
    story.tell("model", name=facts.name, folder=facts.folder, source=facts.source, parameters=facts.parameters)
    return facts


def find_model(
    request: TrainRequest,
    task: str,
    on_progress: Progress = lambda what, done, whole: None,
    say: Callable[[str], None] = lambda words: None,
) -> ModelFolder:
    """The folder of the model on this machine, fetched where it is not there yet."""
    return resolve(request.model or DEFAULT_FOR[task], on_progress, say=say, offline=request.offline)


def _look(run: Path, request: TrainRequest, asking: ProbeRunner, story: Story) -> MachineFacts:
    story.tell("phase", phase="look")
    facts = asking.all_facts(
        lambda waiting, seconds: story.working(f"asking this machine: {', '.join(waiting)}", 0, None)
    )
    if (facts.gpus or facts.os == "macos") and request.device != "cpu":
        trying = ask_this_machine(_TRIAL_SECONDS)
        try:
            facts = trying.all_facts(lambda waiting, seconds: story.working(", ".join(waiting), 0, None))
        finally:
            trying.close()
    write_artifact(run, MACHINE, facts)
    story.tell("looked", cpu_count=facts.cpu_count, memory_bytes=facts.memory_bytes, gpus=[g.name for g in facts.gpus])
    if "torch" not in facts.distributions:
        raise MachineError(
            "torch is not installed in this environment",
            seen=facts.python_path,
            try_next=[install("train")],
        )
    return facts


def _check_up(run: Path, machine: MachineFacts, plan: TrainPlan, story: Story) -> None:
    checkup = check(machine, plan.as_plan())
    write_artifact(run, DOCTOR, {"findings": checkup.findings, "unanswered": checkup.unanswered})
    for finding in checkup.findings:
        if finding.severity != "note":
            story.tell("finding", slug=finding.slug, severity=finding.severity, seen=finding.seen, title=finding.title)
    blockers = [finding for finding in checkup.findings if finding.severity == "blocker"]
    if blockers:
        raise _blocked(blockers[0])


def _blocked(finding: Finding) -> MachineError:
    advice = [type_command(remedy.command) if remedy.command else remedy.title for remedy in finding.remedies]
    return MachineError(
        finding.title or "this machine cannot train", seen=finding.seen, try_next=advice, slug=finding.slug
    )


def _prepare(run: Path, request: TrainRequest, surveyed: Survey, model: ModelFacts, story: Story) -> Prepared:
    begun = time.monotonic()
    tokens = ModelTokenizer(Path(model.folder)) if model.folder and not isinstance(surveyed, VectorSurvey) else None
    length = request.max_length
    if length and tokens and tokens.limit and is_of_preset(request, "max_length"):
        length = min(length, tokens.limit)
    options = PrepareOptions(
        max_length=length,
        overlong=request.overlong or "auto",  # type: ignore[arg-type]  # one of the names that a request allows
        chat_template=_template(request),
        query_prefix=request.query_prefix,
        passage_prefix=request.passage_prefix,
    )
    found = prepare(
        surveyed, tokens, run / "prepared", options=options, cache=_prepared_cache(), on_progress=story.working
    )
    story.tell(
        "prepared",
        is_reused=found.is_reused,
        seconds=round(time.monotonic() - begun, 2),
        splits={name: to_builtins(size) for name, size in found.manifest.splits.items()},
        bad_row_count=found.manifest.bad_row_count,
    )
    return found


def _template(request: TrainRequest) -> str | None:
    if not request.chat_template:
        return None
    try:
        return Path(request.chat_template).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise RequestError(f"--chat-template {request.chat_template} cannot be read", seen=str(error)) from error


def _prepared_choices(prepared: Prepared) -> dict[str, Choice[Any]]:
    return dict(prepared.manifest.choices)


def _prepared_cache() -> Path | None:
    """Where preparations are shared; None where that folder cannot be written."""
    folder = cache_folder() / "prepared"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return None
    return folder
