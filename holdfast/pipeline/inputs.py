"""The stages that read what a run starts from: the machine, the data and the model."""

import os
import shutil
import time
from collections.abc import Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path

from holdfast.core.artifacts import write_artifact
from holdfast.core.env import cache_folder
from holdfast.core.errors import MachineError, RequestError, install, leave_out, set_to, type_command
from holdfast.core.event_log import EventSink
from holdfast.core.events import (
    DataPrepared,
    FindingReported,
    MachineProbed,
    ModelFound,
    Surveyed,
    Working,
)
from holdfast.core.facts import DatasetFacts, MachineFacts, ModelFacts
from holdfast.core.plan import Plan
from holdfast.core.prepared import Manifest
from holdfast.core.progress import Progress, Unit, no_progress
from holdfast.core.records import DetectedData, FileStamp, write_record
from holdfast.core.runfolder import DOCTOR, DOUBTFUL, DROPPED
from holdfast.core.settings import TrainRequest, is_of_preset
from holdfast.data.data_request import data_request
from holdfast.data.label_check import checked_facts
from holdfast.data.prepare import PrepareOptions, prepare
from holdfast.data.sources import Source
from holdfast.data.sources.vectors import VectorSource
from holdfast.data.survey_dataset import detect
from holdfast.data.tokenizer import ModelTokenizer
from holdfast.doctor.checkup import Finding, check
from holdfast.machine.probe import ask_this_machine
from holdfast.machine.probe_runner import ProbeRunner
from holdfast.models.catalog import DEFAULT_FOR
from holdfast.models.resolve import resolve
from holdfast.models.shape import read_shape
from holdfast.models.store import ModelFolder
from holdfast.pipeline import choices

_TRIAL_SECONDS = 90.0
_MOST_FILES = 10_000  # of a folder, that are looked at to see whether its data has changed


def shown_by(report: EventSink) -> Progress:
    """Report progress as events."""

    def show(what: str, done: int, total: int | None, unit: Unit = "") -> None:
        report(Working(what=what, done=done, total=total, unit=unit))

    return show


# machine


def read_machine(run: Path, request: TrainRequest, probes: ProbeRunner, report: EventSink) -> MachineFacts:
    """The facts of this machine, from probes that were started before, and what is likely to fail on it."""

    def show(waiting: Sequence[str], seconds: float) -> None:
        report(Working(what=f"probing this machine: {', '.join(waiting)}"))

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
            "torch is not installed in this environment", found=facts.python_path, try_next=[install("train")]
        )
    _check_up(run, facts, choices.hazard_plan(request, facts), report)
    return facts


def _check_up(run: Path, machine: MachineFacts, plan: Plan, report: EventSink) -> None:
    checkup = check(machine, plan)
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


# detect


def detect_data(run: Path, request: TrainRequest, report: EventSink) -> Source:
    """Find the task and the columns; the rows are read later, once."""
    source = detect(data_request(request), shown_by(report))
    layout, stamps = source.layout, tuple(_stamp(file.path) for _, file in source.files)
    write_record(run, DetectedData(task=layout.task, form=layout.form, roles=layout.roles, stamps=stamps))
    return source


def unchanged(data: DetectedData | None) -> DetectedData | None:
    """What was detected, if none of its files was touched since."""
    return data if data and all(_stamp(Path(one.path)) == one for one in data.stamps) else None


def stamps_in(path: str | None) -> list[FileStamp]:
    """A file, or the files in a folder, as they are now."""
    if not path:
        return []
    if not Path(path).is_dir():
        return [_stamp(Path(path))]
    found = (Path(folder) / name for folder, _, names in os.walk(path) for name in names)
    return [_stamp(file) for file in sorted(islice(found, _MOST_FILES))]


def _stamp(path: Path) -> FileStamp:
    try:
        status = path.stat()
    except OSError:
        return FileStamp(path=str(path), size_bytes=-1, changed_ns=0)
    return FileStamp(path=str(path), size_bytes=status.st_size, changed_ns=status.st_mtime_ns)


# model


def model_name(request: TrainRequest, data: DetectedData) -> str:
    """The model to start from; empty for one that is made for the vectors of the data."""
    return request.model or ("" if data.form == "vectors" else DEFAULT_FOR[data.task])


def take_model(run: Path, request: TrainRequest, data: DetectedData, report: EventSink) -> ModelFacts:
    """Fetch the model where it is not there yet, and read its shape."""
    if request.lora and data.task != "causal":
        raise RequestError(
            f"LoRA is only for causal models, not for {data.task}",
            setting="lora",
            try_next=[leave_out("lora"), set_to("task", "causal")],
        )
    if not model_name(request, data):
        facts = ModelFacts(name="vectors", folder="", source="the vectors in the data")
    else:
        folder = find_model(request, data.task, shown_by(report), report)
        facts = read_shape(folder)
        report(ModelFound(name=facts.name, folder=facts.folder, source=facts.source, parameters=facts.parameters))
    choices.require_fitting(data.task, facts)
    write_record(run, facts)
    return facts


def find_model(
    request: TrainRequest,
    task: str,
    on_progress: Progress = no_progress,
    note: EventSink = lambda event: None,
) -> ModelFolder:
    """The folder of the model on this machine, fetched where it is not there yet."""
    return resolve(request.model or DEFAULT_FOR[task], on_progress, note=note, offline=request.offline)


# prepare


def prepare_options(request: TrainRequest) -> PrepareOptions:
    """How texts become tokens, as requested."""
    return PrepareOptions(
        max_length=request.max_length,
        overlong=request.overlong or "auto",  # type: ignore[arg-type]  # one of the names that a request allows
        chat_template=_template(request),
        query_prefix=request.query_prefix,
        passage_prefix=request.passage_prefix,
    )


def prepare_data(
    run: Path, request: TrainRequest, source: Source, model: ModelFacts, report: EventSink
) -> tuple[DatasetFacts, Manifest]:
    """Read the data once: check, split, tokenize and measure it; or reuse what is there or in the cache."""
    begun = time.monotonic()
    tokens = ModelTokenizer(Path(model.folder)) if model.folder and not isinstance(source, VectorSource) else None
    options = prepare_options(request)
    if options.max_length and tokens and tokens.limit and is_of_preset(request, "max_length"):
        options = replace(options, max_length=min(options.max_length, tokens.limit))
    found = prepare(
        source, tokens, run / "prepared", options=options, cache=_prepared_cache(), on_progress=shown_by(report)
    )
    facts = found.facts
    if request.check_labels:
        facts = checked_facts(source, facts, run / DOUBTFUL, shown_by(report))
    dropped = found.folder / DROPPED
    if dropped.exists():
        shutil.copyfile(dropped, run / DROPPED)
    else:
        (run / DROPPED).unlink(missing_ok=True)
    write_record(run, facts)
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
    report(
        DataPrepared(
            is_reused=found.is_reused,
            seconds=round(time.monotonic() - begun, 2),
            splits=found.manifest.splits,
            bad_row_count=found.manifest.bad_row_count,
        )
    )
    return facts, found.manifest


def _template(request: TrainRequest) -> str | None:
    if not request.chat_template:
        return None
    try:
        return Path(request.chat_template).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise RequestError(f"--chat-template {request.chat_template} cannot be read", found=str(error)) from error


def _prepared_cache() -> Path | None:
    """Where preparations are shared; None where that folder cannot be written."""
    folder = cache_folder() / "prepared"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return None
    return folder
