"""The list of runs: which rows a person asked for, each as one line. Drawn from rows alone, no folder is read."""

import datetime
from dataclasses import dataclass

from django.contrib.auth.models import User
from django.core.paginator import Page, Paginator
from django.db.models import Count, Q
from django.http import QueryDict

from holdfast.core.text import human_seconds
from holdfast.runs.report.headline import metric_name
from holdfast.service.jobs.models import Job, JobGoal, JobState, Shared
from holdfast.service.pages.phases import phase_words

PAGE_ROWS = 50
_STATES = tuple(state.value for state in JobState)
_BEST_FIRST = ("accuracy", "micro_f1", "ndcg@10", "perplexity", "loss")
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
    words: str  # the state as a person would say it
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
    query: str  # the filters as an address carries them, without the page
    count: int


def read_runs_page(user: User, asked: QueryDict) -> RunsPage:
    """Find the rows; the number of queries does not depend on theirs."""
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
            FilterChoice("", "everybody", owner_id is None),
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
    """A row in the words of the list."""
    is_running = job.state == JobState.RUNNING
    base = job.request.get("model") if isinstance(job.request, dict) else ""
    steps = f"{job.step:,} of {job.steps:,}" if job.steps else ""
    return RunRow(
        id=job.pk,
        name=job.name,
        state=job.state,
        words=state_words(job),
        about=", ".join(str(part) for part in (job.task, base) if part),
        owner=job.owner.get_username(),
        dataset=job.dataset.name if job.dataset else "",
        dataset_id=job.dataset_id,
        done=steps,
        step=job.step,
        steps=job.steps,
        left=human_seconds(job.eta_seconds) if is_running and job.eta_seconds else "",
        score=score_words(job.metrics),
        sentence=job.sentence,
        created=job.created,
        started=job.started,
        ended=job.ended,
        is_running=is_running,
        attempts=job.attempts,
    )


def state_words(job: Job, phase: str | None = None) -> str:
    """The state as a person would say it; in a phase that somebody knows better than the row."""
    if job.state == JobState.RUNNING:
        if job.stop_asked:
            return "stopping"
        if job.silent_since:
            return "no word from it"
        phase = job.phase if phase is None else phase
        return phase_words(phase) if phase else "planning" if job.goal == JobGoal.PLAN else "running"
    if job.state == JobState.QUEUED and job.goal == JobGoal.PLAN:
        return "waits to be planned"
    return {"queued": "waits for a machine", "planned": "planned, ready to start"}.get(job.state, job.state)


def score_words(metrics: object) -> str:
    """The figure that decides, from metrics by split or bare ones; empty when there is none."""
    if not isinstance(metrics, dict):
        return ""
    for found in (metrics.get("test"), metrics.get("validation"), metrics):
        if not isinstance(found, dict):
            continue
        for name in _BEST_FIRST:
            value = found.get(name)
            if isinstance(value, int | float) and not isinstance(value, bool):
                shown = f"{value:.3f}" if name in ("loss", "perplexity") else f"{value * 100:.1f} %"
                return f"{shown} {metric_name(name)}"
    return ""


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
