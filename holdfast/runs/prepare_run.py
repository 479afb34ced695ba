"""From a request to a run that can be trained. Each step reads what earlier steps left and leaves one new file.

    survey   the data           dataset.json
    model    where it starts    (in the model cache)
    machine  facts about it     machine.json
    plan     every setting      doctor.json, then plan.json once texts are tokenized and lengths are exact
    prepare  the tokenized data prepared/

A preparation that was cut off is repeated: a step whose file is whole and still true costs nothing the second time.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast.core.artifacts import write_artifact
from holdfast.core.disk_space import room_at, room_words
from holdfast.core.env import cache_folder
from holdfast.core.errors import MachineError, RequestError, install, leave_out, set_to, type_command
from holdfast.core.event_log import EventSink
from holdfast.core.events import (
    DataPrepared,
    FindingReported,
    MachineProbed,
    ModelFound,
    Planned,
    StageStarted,
    Surveyed,
    Working,
)
from holdfast.core.facts import MachineFacts, ModelFacts, Task
from holdfast.core.plan import Choice
from holdfast.core.progress import Progress, Unit, no_progress
from holdfast.core.records import RunPlan, write_record
from holdfast.core.runfolder import DOCTOR, DROPPED, checkpoints_folder
from holdfast.core.settings import TrainRequest, is_of_preset
from holdfast.core.text import human_bytes
from holdfast.data.amounts import amounts_of
from holdfast.data.data_request import DataRequest
from holdfast.data.prepare import Prepared, PrepareOptions, prepare
from holdfast.data.sources.vectors import VectorSource
from holdfast.data.survey_dataset import Survey, survey
from holdfast.data.tokenizer import ModelTokenizer
from holdfast.doctor.checkup import Finding, check
from holdfast.machine.probe import ask_this_machine
from holdfast.machine.probe_runner import ProbeRunner
from holdfast.models.catalog import DEFAULT_FOR
from holdfast.models.resolve import require_model, resolve
from holdfast.models.shape import read_shape
from holdfast.models.store import ModelFolder
from holdfast.planning.memory_model import checkpoint_bytes
from holdfast.planning.train_plan import TrainPlan, keep_learning, make_plan

_TRIAL_SECONDS = 90.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedRun:
    """A run that can be proven and trained."""

    plan: RunPlan
    machine: MachineFacts


def prepare_run(
    run: Path, request: TrainRequest, report: EventSink, *, earlier: RunPlan | None = None, attempts: int = 0
) -> PreparedRun:
    """Survey, plan and prepare a run. A run that has begun keeps what its earlier plan says about learning."""
    probes = ask_this_machine(0.0)  # during the survey; devices are tried below, where there are any
    try:
        if request.model:
            report(StageStarted(stage="model", subject=request.model))
            require_model(request.model, _shown_by(report), offline=request.offline)
        report(StageStarted(stage="survey", subject=request.data))
        surveyed = _survey(run, request, report)
        model = _model(request, surveyed, report)
        machine = _probe(run, request, probes, report)
    finally:
        probes.close()
    report(StageStarted(stage="plan"))
    planned = make_plan(request, machine, surveyed.facts, model)
    _check_up(run, machine, planned, report)
    require_room(run, planned)
    report(StageStarted(stage="prepare"))
    prepared = _prepare(run, request, surveyed, model, report)
    amounts = amounts_of(prepared.folder, int(planned.choices["batch_size"].value))
    planned = make_plan(
        request,
        machine,
        surveyed.facts,
        model,
        longest_tokens=amounts.longest_tokens,
        largest_step_tokens=amounts.largest_step_tokens,
    ).with_choices(_prepared_choices(prepared))
    plan = planned.as_record(request, run)
    if earlier:
        plan = keep_learning(earlier, plan, attempts)
    write_record(run, plan)
    report(Planned(task=plan.task, choices=plan.choices))
    return PreparedRun(plan=plan, machine=machine)


def _shown_by(report: EventSink) -> Progress:
    """Report progress as events."""

    def show(what: str, done: int, total: int | None, unit: Unit = "") -> None:
        report(Working(what=what, done=done, total=total, unit=unit))

    return show


def data_request(request: TrainRequest) -> DataRequest:
    """The part of a request that is about the data."""
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


def _survey(run: Path, request: TrainRequest, report: EventSink) -> Survey:
    found = survey(data_request(request), None, _shown_by(report))
    facts = found.facts
    write_record(run, facts)
    found.bad.write(run / DROPPED)
    report(
        Surveyed(
            task=facts.task,
            form=facts.form,
            rows=facts.rows,
            splits=dict(facts.splits),
            labels=len(facts.labels),
            choices=facts.choices,
            warnings=facts.warnings,
            bad_row_count=facts.bad_row_count,
        )
    )
    return found


def _model(request: TrainRequest, surveyed: Survey, report: EventSink) -> ModelFacts:
    task = surveyed.facts.task
    if request.lora and task != "causal":
        raise RequestError(
            f"LoRA is only for causal models, not for {task}",
            setting="lora",
            try_next=[leave_out("lora"), set_to("task", "causal")],
        )
    if isinstance(surveyed.source, VectorSource) and not request.model:
        return ModelFacts(name="vectors", folder="", source="the vectors in the data")
    report(StageStarted(stage="model", subject=request.model or DEFAULT_FOR[task]))
    folder = find_model(request, task, _shown_by(report), report)
    facts = read_shape(folder)
    report(ModelFound(name=facts.name, folder=facts.folder, source=facts.source, parameters=facts.parameters))
    return facts


def find_model(
    request: TrainRequest,
    task: str,
    on_progress: Progress = no_progress,
    note: EventSink = lambda event: None,
) -> ModelFolder:
    """The folder of the model on this machine, fetched where it is not there yet."""
    return resolve(request.model or DEFAULT_FOR[task], on_progress, note=note, offline=request.offline)


def _probe(run: Path, request: TrainRequest, probes: ProbeRunner, report: EventSink) -> MachineFacts:
    def show(waiting: Sequence[str], seconds: float) -> None:
        report(Working(what=f"probing this machine: {', '.join(waiting)}"))

    report(StageStarted(stage="machine"))
    facts = probes.all_facts(show)
    if (facts.gpus or facts.os == "macos") and request.device != "cpu":
        trying = ask_this_machine(_TRIAL_SECONDS)
        try:
            facts = trying.all_facts(show)
        finally:
            trying.close()
    write_record(run, facts)
    report(
        MachineProbed(cpu_count=facts.cpu_count, memory_bytes=facts.memory_bytes, gpus=[gpu.name for gpu in facts.gpus])
    )
    if "torch" not in facts.distributions:
        raise MachineError(
            "torch is not installed in this environment",
            found=facts.python_path,
            try_next=[install("train")],
        )
    return facts


def _check_up(run: Path, machine: MachineFacts, planned: TrainPlan, report: EventSink) -> None:
    checkup = check(machine, planned.as_plan())
    write_artifact(run, DOCTOR, {"findings": checkup.findings, "unanswered": checkup.unanswered})
    for finding in checkup.findings:
        if finding.severity != "note":
            report(
                FindingReported(slug=finding.slug, severity=finding.severity, seen=finding.seen, title=finding.title)
            )
    blockers = [finding for finding in checkup.findings if finding.severity == "blocker"]
    if blockers:
        raise _blocked(blockers[0])


def _blocked(finding: Finding) -> MachineError:
    advice = [type_command(remedy.command) if remedy.command else remedy.title for remedy in finding.remedies]
    return MachineError(
        finding.title or "this machine cannot train", found=finding.seen, try_next=advice, slug=finding.slug
    )


def _prepare(run: Path, request: TrainRequest, surveyed: Survey, model: ModelFacts, report: EventSink) -> Prepared:
    begun = time.monotonic()
    tokens = (
        ModelTokenizer(Path(model.folder)) if model.folder and not isinstance(surveyed.source, VectorSource) else None
    )
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
        surveyed.source,
        tokens,
        run / "prepared",
        options=options,
        cache=_prepared_cache(),
        on_progress=_shown_by(report),
    )
    report(
        DataPrepared(
            is_reused=found.is_reused,
            seconds=round(time.monotonic() - begun, 2),
            splits=found.manifest.splits,
            bad_row_count=found.manifest.bad_row_count,
        )
    )
    return found


def _template(request: TrainRequest) -> str | None:
    if not request.chat_template:
        return None
    try:
        return Path(request.chat_template).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise RequestError(f"--chat-template {request.chat_template} cannot be read", found=str(error)) from error


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


def require_room(run: Path, plan: TrainPlan) -> None:
    """Refuse where two checkpoints cannot fit, as the engine does once it has loaded all."""
    lora = plan.choices.get("lora")
    need = 2 * checkpoint_bytes(plan.model, lora=bool(lora and lora.value))
    if room_at(run).free_bytes >= need or checkpoints_folder(run).exists():
        return
    raise MachineError(
        f"the disk of {run} has no space for two checkpoints, so a full disk could end the run",
        found=f"{room_words(run)}; two checkpoints need {human_bytes(need)}",
        try_next=("make room there", "--out FOLDER, on another disk"),
        slug="disk-full",
    )
