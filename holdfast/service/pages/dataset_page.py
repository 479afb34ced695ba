"""What the dataset pages show: the list, and one dataset with its survey and the form that says how to read it."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.contrib.auth.models import User
from django.core.paginator import Page, Paginator
from django.db.models import Count, Q
from django.utils.safestring import SafeString, mark_safe

from holdfast.core.facts import SPLITS, BadRow, Lengths
from holdfast.core.settings import SETTINGS
from holdfast.core.text import human_bytes
from holdfast.runs.report.html import Html, table, tag
from holdfast.runs.report.svg_charts import bar_chart, meter
from holdfast.service.jobs import datasets
from holdfast.service.jobs.models import Dataset, Job
from holdfast.service.jobs.shown_errors import ShownError, kept_page_error, label_of, page_warning
from holdfast.service.survey_child import SurveyProgress, UploadFacts

_ON_A_PAGE = 25
TASK_WORDS = {"classify": "classify texts", "causal": "language model", "two-tower": "search (two-tower)"}
_SHOWN_LABELS, _SHOWN_BAD_ROWS = 20, 8
_YES_NO = (("yes", "yes"), ("no", "no"))
_MANY_HELP = "Column with the text. Select several to join them."
_MODELS = {"classify": "a text classifier", "causal": "a language model", "two-tower": "a search model (two-tower)"}
_ROLES = ("text", "prompt", "answer", "query", "passage")
_CHOICES = (
    *("task", "form", "text_column", "label_column", "labels", "splits", "format", "encoding", "delimiter", "header"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChoiceField:
    """One control: its options, with the chosen ones marked, or its value."""

    name: str
    label: str
    help: str
    options: Sequence[tuple[str, str, bool]] = ()
    value: str = ""
    is_many: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetRow:
    """A dataset in the list."""

    pk: int
    name: str
    file_name: str
    state: str
    about: str
    rows: int | None
    size_bytes: int
    created: datetime
    owner: str
    team: str
    runs: int
    warnings: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetList:
    """The list of datasets."""

    rows: Sequence[DatasetRow]
    page: Page[Any]
    text: str
    has_any: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetPage:
    """One dataset."""

    pk: int
    name: str
    file_name: str
    size_bytes: int
    created: datetime
    owner: str
    team: str
    state: str
    doing: str = ""
    share: float | None = None  # of the survey, where it is known
    lead: str = ""
    tiles: Sequence[tuple[str, str]] = ()
    choices: Sequence[tuple[str, str, str]] = ()
    warnings: Sequence[str] = ()
    bad_rows: Sequence[BadRow] = ()
    bad_row_count: int = 0
    problem: ShownError | None = None
    columns: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = ()
    left_out_columns: int = 0
    charts: Sequence[SafeString] = ()
    labels: SafeString = SafeString()
    fields: Sequence[ChoiceField] = ()
    runs: Sequence[tuple[int, str, str]] = ()
    run_count: int = 0
    others: int = 0  # runs that this person may not see
    twins: Sequence[tuple[int, str]] = ()


def read_list(user: User, text: str, number: str) -> DatasetList:
    """The datasets that a person may see, the newest first."""
    seen = Dataset.objects.visible_to(user)
    text = text.replace("\0", "").strip()[:200]
    found = seen.filter(Q(name__icontains=text) | Q(file_name__icontains=text)) if text else seen
    shown = found.select_related("owner", "team").annotate(run_count=Count("jobs", distinct=True)).order_by("-pk")
    page = Paginator(shown.defer("preview"), _ON_A_PAGE).get_page(number)
    rows = [_row(datasets.settle(one), one.run_count) for one in page.object_list]
    return DatasetList(rows=rows, page=page, text=text, has_any=bool(rows) or seen.exists())


def read_dataset(dataset: Dataset, user: datasets.Person) -> DatasetPage:
    """Everything that the page of a dataset shows this person; of runs that are not theirs to see, how many."""
    dataset = datasets.settle(dataset)
    facts, preview = datasets.read_facts(dataset), datasets.read_preview(dataset)
    progress = datasets.progress(dataset) if dataset.state == "surveying" else None
    jobs = Job.objects.filter(dataset=dataset)
    seen = jobs.visible_to(user)
    run_count = jobs.count()
    return DatasetPage(
        pk=dataset.pk,
        name=dataset.name,
        file_name=dataset.file_name,
        size_bytes=dataset.size_bytes,
        created=dataset.created,
        owner=dataset.owner.get_username(),
        team=dataset.team.name if dataset.team else "",
        state=dataset.state,
        doing=_doing(progress) if progress else "",
        share=min(1.0, progress.done / progress.total) if progress and progress.total else None,
        lead=_lead(facts),
        tiles=tuple(_tiles(facts)),
        choices=tuple(_chosen(facts)),
        warnings=tuple(_warnings(facts)),
        bad_rows=facts.bad_rows[:_SHOWN_BAD_ROWS],
        bad_row_count=facts.bad_row_count,
        problem=kept_page_error(dataset.problem, datasets.CHOICES),
        columns=preview.columns,
        rows=preview.rows,
        left_out_columns=preview.left_out_columns,
        charts=_charts(facts),
        labels=_labels(facts),
        fields=tuple(choice_fields(dataset)),
        runs=list(seen.order_by("-pk").values_list("pk", "name", "state")[:5]),
        run_count=run_count,
        others=run_count - seen.count(),
        twins=[(twin.pk, twin.name) for twin in datasets.twins(dataset, user)],
    )


def _row(dataset: Dataset, runs: int) -> DatasetRow:
    facts, problem = datasets.read_facts(dataset), kept_page_error(dataset.problem)
    about = problem.what if problem else TASK_WORDS.get(facts.task, "")
    return DatasetRow(
        pk=dataset.pk,
        name=dataset.name,
        file_name=dataset.file_name,
        state=dataset.state,
        about=about,
        rows=facts.rows if facts.task else None,
        size_bytes=dataset.size_bytes,
        created=dataset.created,
        owner=dataset.owner.get_username(),
        team=dataset.team.name if dataset.team else "",
        runs=runs,
        warnings=len(facts.warnings),
    )


def _lead(facts: UploadFacts) -> str:
    if not facts.task:
        return ""
    text = f"This dataset can train {_MODELS.get(facts.task, facts.task)} ({facts.form})."
    columns = (("text", facts.text_column), ("label", facts.label_column))
    return " ".join([text, *(f"The {name} is in the column “{column}”." for name, column in columns if column)])


def _tiles(facts: UploadFacts) -> Iterator[tuple[str, str]]:
    if not facts.task:
        return
    yield f"{facts.rows:,}", "rows"
    for split in _in_order(facts.splits, SPLITS):
        yield f"{facts.splits[split]:,}", "for training" if split == "train" else f"for {split}"
    if facts.label_count:
        yield f"{facts.label_count:,}", "labels"
    for role in _in_order(facts.lengths, _ROLES)[:2]:
        found = facts.lengths[role]
        yield f"{found.median:g}", f"{found.unit} per {role} (median)"
    if facts.bad_row_count:
        yield f"{facts.bad_row_count:,}", "rows skipped"


def _chosen(facts: UploadFacts) -> Iterator[tuple[str, str, str]]:
    for name in _in_order(facts.choices, _CHOICES):
        choice = facts.choices[name]
        yield name.replace("_", " "), str(choice.value), choice.because


def _charts(facts: UploadFacts) -> tuple[SafeString, ...]:
    drawn = facts.histograms
    roles = [role for role in _in_order(drawn, _ROLES) if drawn[role] and role in facts.lengths]
    return tuple(mark_safe(_length_chart(role, drawn[role], facts.lengths[role])) for role in roles)


def _in_order(found: Mapping[str, Any], known: Sequence[str]) -> list[str]:
    """What is known in its usual order, then the rest."""
    return sorted(found, key=lambda name: known.index(name) if name in known else len(known))


def _doing(progress: SurveyProgress) -> str:
    """What the survey is doing, and how much of it is done."""
    what, done, whole = progress.what, progress.done, progress.total
    if not done:
        return what
    if progress.unit == "bytes":
        return f"{what}, {human_bytes(done)}" + (f" of {human_bytes(whole)}" if whole else "")
    return f"{what}, {done:,}" + (f" of {whole:,} rows" if whole else " rows so far")


def _warnings(facts: UploadFacts) -> Iterator[str]:
    if facts.warning_details:
        return (page_warning(one, datasets.CHOICES) for one in facts.warning_details)
    return iter(facts.warnings)  # surveyed by an earlier version


def _length_chart(role: str, bars: Sequence[tuple[int, int]], lengths: Lengths) -> Html:
    """How long the texts of a role are; from the shortest on, and in words where all are about the same."""
    width = bars[1][0] - bars[0][0] if len(bars) > 1 else 1
    first = next((at for at, (_, count) in enumerate(bars) if count), 0)
    shown, title, unit = bars[first:], f"Length of each {role}", lengths.unit
    has_more = lengths.longest >= bars[-1][0] + width
    if len(shown) == 1:
        return tag("p", f"Every {role} has {_range(shown[0][0], width, has_more)} {unit}.")
    named = [(_range(low, width, has_more and low == bars[-1][0]), float(count)) for low, count in shown]
    about = f"Median {lengths.median:g}, 95 of 100 within {lengths.p95:,}, longest {lengths.longest:,}."
    return bar_chart(title, about, named, unit)


def _range(low: int, width: int, has_more: bool) -> str:
    return f"{low:,}+" if has_more else f"{low:,}" if width == 1 else f"{low:,}-{low + width - 1:,}"


def _labels(facts: UploadFacts) -> SafeString:
    labels = sorted(facts.labels.items(), key=lambda item: -item[1])
    if not labels:
        return mark_safe("")
    highest, whole = labels[0][1] or 1, sum(facts.labels.values()) or 1
    rows: list[Sequence[object]] = [
        [name, meter(count / highest, f"{count / whole:.1%}"), f"{count:,}"] for name, count in labels[:_SHOWN_LABELS]
    ]
    more = (facts.label_count or len(labels)) - len(rows)
    caption = f"The {_SHOWN_LABELS} most common of {len(rows) + more:,}" if more > 0 else ""
    return mark_safe(table(["label", "share", "rows"], rows, caption=caption, numbers=[2]))


def choice_fields(dataset: Dataset) -> Iterator[ChoiceField]:
    """A control for every choice, with its present value; help and names are those of the settings of `train`."""
    chosen, columns = dataset.choices, [(one, one) for one in datasets.read_preview(dataset).columns]
    options: Mapping[str, Sequence[tuple[str, str]]] = {
        "task": list(TASK_WORDS.items()),
        "text_column": columns,
        "label_column": columns,
        "group_column": columns,
        "encoding": [(one, one) for one in datasets.ENCODINGS],
        "delimiter": [(",", "comma"), (";", "semicolon"), ("tab", "tab"), ("|", "bar"), (":", "colon")],
        "header": _YES_NO,
        "multi_label": _YES_NO,
        "max_bad_rows": [("0.01", "1%"), ("0.05", "5%"), ("0.2", "20%"), ("0.5", "50%")],
        "min_score": (),
    }
    for name, known in options.items():
        now = chosen.get(name)
        values = {str(one) for one in now} if isinstance(now, list) else {_as_option(now)}
        is_many = name == "text_column"
        automatic = [] if is_many or not known else [("", "automatic", False)]
        yield ChoiceField(
            name=name,
            label=label_of(name),
            help=_MANY_HELP if is_many else SETTINGS[name].help,
            options=[*automatic, *((value, text, value in values) for value, text in known)],
            value="" if known else _as_option(now),
            is_many=is_many,
        )


def _as_option(value: object) -> str:
    """A chosen value as the form writes it."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
