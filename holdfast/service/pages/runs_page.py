"""The list of runs: the rows that match a filter, one line each. It is drawn from rows alone; no folder is read."""

import datetime
from collections.abc import Mapping
from dataclasses import dataclass

from django.contrib.auth.models import User
from django.core.paginator import Page, Paginator
from django.db.models import Count, Q
from django.http import QueryDict

from holdfast.core.scores import final_score, metric_name, metric_value
from holdfast.core.text import human_seconds
from holdfast.service.jobs.job_wording import job_badge
from holdfast.service.jobs.models import Job, JobState, Shared

PAGE_ROWS = 50
_STATES = tuple(state.value for state in JobState)
_NOT_SHOWN = ("error",)


@dataclass(frozen=True, slots=True)
class FilterChoice:
    """One entry of a filter."""

    value: str
    words: str
    is_chosen: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRow:
    """One run as the list shows it."""

    id: int
    name: str
    state: str
    badge: str  # the state in a few words
    about: str  # task and model
    owner: str
    dataset: str
    dataset_id: int | None
    done: str  # steps
    step: int
    steps: int
    left: str
    score: str
    sentence: str
    created: datetime.datetime
    started: datetime.datetime | None
    ended: datetime.datetime | None
    is_running: bool
    attempts: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RunsPage:
    """What the list page shows."""

    rows: tuple[RunRow, ...]
    page: "Page[Job]"
    states: tuple[FilterChoice, ...]
    owners: tuple[FilterChoice, ...]
    text: str
    is_filtered: bool
    has_any: bool
    query: str  # the filters as a query string, without the page
    count: int


def read_runs_page(user: User, asked: QueryDict) -> RunsPage:
    """Find the rows; the number of queries does not depend on how many there are."""
    state, owner, text = (
        asked.get("state", ""),
        asked.get("owner", ""),
        asked.get("q", "").replace("\0", "").strip()[:200],
    )
    state = state if state in _STATES else ""
    visible = Job.objects.visible_to(user)
    by_state = dict(visible.order_by().values_list("state").annotate(Count("pk")))
    owners = dict(visible.order_by().values_list("owner_id", "owner__username").distinct())
    owner_id = next((key for key in owners if str(key) == owner), None)
    paginator = Paginator(_found(visible, state, owner_id, text), PAGE_ROWS)
    page = paginator.get_page(asked.get("page"))
    kept = QueryDict(mutable=True)
    kept.update({name: value for name, value in (("state", state), ("owner", owner), ("q", text)) if value})
    return RunsPage(
        rows=tuple(row_of(job) for job in page.object_list),
        page=page,
        states=(
            FilterChoice("", f"all ({sum(by_state.values())})", not state),
            *(FilterChoice(one, f"{one} ({by_state.get(one, 0)})", one == state) for one in _STATES),
        ),
        owners=(
            FilterChoice("", "everyone", owner_id is None),
            *(
                FilterChoice(str(key), name, key == owner_id)
                for key, name in sorted(owners.items(), key=lambda one: one[1])
            ),
        )
        if len(owners) > 1
        else (),
        text=text,
        is_filtered=bool(kept),
        has_any=bool(by_state),
        query=kept.urlencode(),
        count=paginator.count,
    )


def row_of(job: Job) -> RunRow:
    """A job as the list shows it."""
    is_running = job.state == JobState.RUNNING
    base = job.request.get("model") if isinstance(job.request, dict) else ""
    steps = f"{job.step:,} of {job.steps:,}" if job.steps else ""
    return RunRow(
        id=job.pk,
        name=job.name,
        state=job.state,
        badge=job_badge(job),
        about=", ".join(str(part) for part in (job.task, base) if part),
        owner=job.owner.get_username(),
        dataset=job.dataset.name if job.dataset else "",
        dataset_id=job.dataset_id,
        done=steps,
        step=job.step,
        steps=job.steps,
        left=human_seconds(job.eta_seconds) if is_running and job.eta_seconds else "",
        score=score_text(job.metrics),
        sentence=job.sentence,
        created=job.created,
        started=job.started,
        ended=job.ended,
        is_running=is_running,
        attempts=job.attempts,
    )


def score_text(metrics: Mapping[str, object]) -> str:
    """The metric that decides, on the test split if there is one: "92.1% accuracy"; empty when there is none."""
    found = final_score(metrics)
    return f"{metric_value(found[1], found[2])} {metric_name(found[1])}" if found else ""


def _found(visible: Shared, state: str, owner_id: int | None, text: str) -> Shared:
    found = visible.select_related("owner", "dataset").defer(*_NOT_SHOWN).order_by("-created", "-pk")
    if state:
        found = found.filter(state=state)
    if owner_id is not None:
        found = found.filter(owner_id=owner_id)
    if text:
        number = Q(pk=int(text)) if text.isdecimal() and len(text) < 10 else Q()
        found = found.filter(
            number | Q(name__icontains=text) | Q(dataset__name__icontains=text) | Q(task__icontains=text)
            | Q(sentence__icontains=text)
        )  # fmt: skip
    return found
