"""What the model pages show: the registry, and one model with its metrics and a form to try it."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.contrib.auth.models import AbstractBaseUser, AnonymousUser, User
from django.core.paginator import Page, Paginator
from django.db.models import Q
from django.utils.safestring import SafeString, mark_safe

from holdfast.core.records import ModelInfo, read_record
from holdfast.core.runfolder import model_folder
from holdfast.core.scores import ModelMetrics, final_score, metric_name, metric_value, read_metrics, shown_scores
from holdfast.runs.report.result_section import labels_table, scores_table
from holdfast.runs.report.svg_charts import meter
from holdfast.service.jobs.model_pool import LONGEST_TEXT
from holdfast.service.jobs.models import ModelStage, TrainedModel
from holdfast.service.jobs.shown_errors import ShownError

_ON_A_PAGE = 25
_SHOWN_LABELS = 10
_TILES = 2  # metrics per split
_SHOWN_CLASSES = 100
_TRY = {
    "classify": ("Text", "Classify", "Probabilities are calibrated on texts that were not used for training."),
    "causal": ("Prompt", "Generate", "The most likely answer, up to 200 tokens."),
    "two-tower": ("Query", "Search", "Searches the passages that the model was trained on."),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRow:
    """A model in the registry."""

    pk: int
    name: str
    version: int
    stage: str
    task: str
    metric: str
    base: str
    owner: str
    team: str
    size_bytes: int
    created: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelList:
    """The registry."""

    rows: Sequence[ModelRow]
    page: Page[Any]
    text: str
    stage: str
    has_any: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelReply:
    """A model's answer, ready to be shown."""

    asked: str
    chances: Sequence[tuple[str, SafeString, bool]] = ()  # label, bar, whether it is predicted
    text: str = ""
    note: str = ""
    found: Sequence[tuple[str, str]] = ()  # score, passage
    problem: ShownError | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelPage:
    """One model."""

    pk: int
    name: str
    version: int
    stage: str
    task: str
    base: str
    owner: str
    team: str
    created: datetime
    size_bytes: int
    run: int
    run_name: str
    dataset: tuple[int, str] | None
    tiles: Sequence[tuple[str, str]]
    metrics: SafeString
    classes: SafeString
    labels: Sequence[str]
    has_files: bool
    has_text: bool  # it takes text as input
    versions: Sequence[tuple[int, int, str, str]]  # pk, version, stage, metric
    try_words: tuple[str, str, str]
    longest: int = LONGEST_TEXT
    answer: ModelReply | None = None
    promoted: tuple[int, int] | None = None  # pk and version of the one it would replace


def read_list(user: User, text: str, stage: str, number: str) -> ModelList:
    """The models that a user may see, newest first."""
    seen = TrainedModel.objects.visible_to(user)
    text = text.replace("\0", "").strip()[:200]
    stage = stage if stage in ModelStage.values else ""
    found = seen.filter(Q(name__icontains=text) | Q(base__icontains=text) | Q(task=text)) if text else seen
    found = found.filter(stage=stage) if stage else found
    page = Paginator(found.select_related("owner", "team").order_by("-pk"), _ON_A_PAGE).get_page(number)
    rows = [_row(model) for model in page.object_list]
    return ModelList(rows=rows, page=page, text=text, stage=stage, has_any=bool(rows) or seen.exists())


def read_model(
    model: TrainedModel, user: AbstractBaseUser | AnonymousUser, answer: ModelReply | None = None
) -> ModelPage:
    """Everything on the page of a model; tables by label come from the run folder."""
    run = model.job.folder
    info = read_record(model_folder(run), ModelInfo)
    metrics = read_metrics(run)
    scores = dict(reversed(metrics.scores.items())) or model.metrics  # the test split first
    seen = TrainedModel.objects.visible_to(user)
    same = seen.filter(owner=model.owner_id, name=model.name).order_by("-version")
    versions = [(one.pk, one.version, one.stage, headline(one)) for one in same[:10]]
    others = [one for one in versions if one[0] != model.pk and one[2] == ModelStage.PROMOTED]
    dataset = model.job.dataset
    return ModelPage(
        pk=model.pk,
        name=model.name,
        version=model.version,
        stage=model.stage,
        task=model.task,
        base=model.base,
        owner=model.owner.get_username(),
        team=model.team.name if model.team else "",
        created=model.created,
        size_bytes=model.size_bytes,
        run=model.job_id,
        run_name=model.job.name,
        dataset=(dataset.pk, dataset.name) if dataset else None,
        tiles=list(_tiles(scores)),
        metrics=mark_safe(scores_table(scores, {name: one.intervals for name, one in metrics.splits.items()})),
        classes=_classes(metrics),
        labels=list(info.labels[:200]) if info else [],
        has_files=model_folder(run).is_dir(),
        has_text=not info or info.form != "vectors",
        versions=versions,
        try_words=_TRY.get(model.task, _TRY["classify"]),
        answer=answer,
        promoted=(others[0][0], others[0][1]) if others else None,
    )


def read_answer(asked: str, said: Mapping[str, Any]) -> ModelReply:
    """The model's answer for the page."""
    if "probabilities" in said:
        chosen = said["predicted"] if isinstance(said["predicted"], list) else [said["predicted"]]
        shown = list(said["probabilities"].items())[: max(_SHOWN_LABELS, len(chosen))]
        chances = [(str(name), mark_safe(meter(share, f"{share:.1%}")), name in chosen) for name, share in shown]
        return ModelReply(
            asked=asked, chances=chances, note="" if chosen else "No label has a probability of at least 50%."
        )
    if "found" in said:
        found = [(f"{one['score']:.3f}", str(one.get("text", ""))) for one in said["found"]]
        return ModelReply(asked=asked, found=found, note="" if found else "Nothing found.")
    notes = [] if said.get("ended", True) else ["The answer was cut off at the length limit."]
    notes += (
        ["The start of the text was cut off: it is longer than the model's limit."] if said.get("prompt_cut") else []
    )
    return ModelReply(asked=asked, text=str(said.get("answer", "")) or "(empty answer)", note=" ".join(notes))


def headline(model: TrainedModel) -> str:
    """The metric that decides, with the split it was measured on: "accuracy 92.1% (test)"."""
    found = final_score(model.metrics)
    return f"{metric_name(found[1])} {metric_value(found[1], found[2])} ({found[0]})" if found else ""


def _row(model: TrainedModel) -> ModelRow:
    return ModelRow(
        pk=model.pk,
        name=model.name,
        version=model.version,
        stage=model.stage,
        task=model.task,
        metric=headline(model),
        base=model.base,
        owner=model.owner.get_username(),
        team=model.team.name if model.team else "",
        size_bytes=model.size_bytes,
        created=model.created,
    )


def _tiles(scores: Mapping[str, Mapping[str, float]]) -> Iterator[tuple[str, str]]:
    for split, found in scores.items():
        for name, value in list(shown_scores(found).items())[:_TILES]:
            yield metric_value(name, value), f"{metric_name(name)}, {split}"


def _classes(metrics: ModelMetrics) -> SafeString:
    for split, found in reversed(list(metrics.splits.items())):
        if found.classes:
            return mark_safe(labels_table(found.classes, _SHOWN_CLASSES, caption=f"Measured on the {split} rows"))
    return mark_safe("")
