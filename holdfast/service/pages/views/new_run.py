"""A new run: what to train, on which data, how. It is planned first; nothing is trained before a person says so."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from django.contrib.auth.decorators import login_required
from django.contrib.auth.models import Group, User
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_http_methods

from holdfast.core.errors import RequestError
from holdfast.service.jobs.models import Dataset, Job, TrainedModel
from holdfast.service.jobs.requests import submit_run
from holdfast.service.pages.run_form import (
    FormField,
    FormGroup,
    Option,
    errors_by_field,
    make_fields,
    make_groups,
    read_settings,
    read_values,
)

_MOST_DATASETS = 500
_LOST = "the model that it was to go on from is gone, or not shared with you"
_OTHERS = (("validation", "validation data"), ("test", "test data"), ("negatives", "near-misses of queries"))


@dataclass(frozen=True, slots=True)
class Line:
    """One message, and the control it is about."""

    words: str
    field: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NewRunPage:
    """What the form shows."""

    name: str
    datasets: tuple[Option, ...]
    others: tuple[tuple[str, str, tuple[Option, ...]], ...]
    teams: tuple[Option, ...]
    fields: tuple[FormField, ...]
    groups: tuple[FormGroup, ...]
    parent: Job | None
    from_model: TrainedModel | None
    is_model_lost: bool  # it was to go on from one that is gone, or not shared
    problem: str
    lines: tuple[Line, ...]
    try_next: tuple[str, ...]
    has_datasets: bool


@require_http_methods(["GET", "HEAD", "POST"])
@login_required
def new_run(request: HttpRequest) -> HttpResponse:
    """Show the form; with a POST, ask for the plan."""
    user = cast(User, request.user)
    given = request.POST if request.method == "POST" else request.GET
    ready = Dataset.objects.visible_to(user).filter(state=Dataset.State.READY).defer("preview")
    datasets = list(ready.order_by("-created", "-pk")[:_MOST_DATASETS])
    parent = _visible(Job.objects.visible_to(user).select_related("dataset", "team"), given.get("from"))
    earlier = given.get("from_model")
    from_model = _visible(TrainedModel.objects.visible_to(user), earlier)
    before = parent.request.get("from_run") if parent and not earlier else None
    if before:
        from_model = TrainedModel.objects.visible_to(user).filter(job_id=before).first()
    is_lost = bool(earlier or before) and from_model is None
    if request.method != "POST":
        values = read_values(parent.request) if parent else {name: given[name] for name in given}
        chosen = str(parent.dataset_id or "") if parent else given.get("dataset", "")
        extra = {role: str(parent.request.get(role) or "") for role, _ in _OTHERS} if parent else {}
        page = _page(
            user, datasets, parent, from_model, values, chosen, extra, name=parent.name if parent else "",
            is_lost=is_lost,
        )  # fmt: skip
        return render(request, "pages/run_new.html", {"page": page})
    values = {name: given[name] for name in given}
    try:
        if earlier and is_lost:  # it was there when the form was shown
            raise RequestError(
                "the request cannot be used", seen=_LOST, try_next=("send it again, to begin without it",)
            )
        job = _submit(user, values, datasets, parent, from_model)
    except RequestError as error:
        page = _page(
            user, datasets, parent, from_model, values, values.get("dataset", ""), values, name=values.get("name", ""),
            is_lost=is_lost, error=error,
        )  # fmt: skip
        return render(request, "pages/run_new.html", {"page": page}, status=422)
    return redirect("run", job.pk)


def _submit(
    user: User,
    values: Mapping[str, str],
    datasets: list[Dataset],
    parent: Job | None,
    from_model: TrainedModel | None,
) -> Job:
    by_id = {str(one.pk): one for one in datasets}
    dataset = by_id.get(values.get("dataset", ""))
    if dataset is None and from_model is None:
        raise RequestError("the request cannot be used", seen="a dataset is missing: choose the one to train on")
    settings = read_settings(values)
    others = {role: by_id[values[role]] for role, _ in _OTHERS if values.get(role) in by_id}
    team = _visible(user.groups.all(), values.get("team"))
    return submit_run(
        user,
        settings,
        dataset=dataset,
        from_model=from_model,
        others=others,
        name=values.get("name", "").strip(),
        goal=Job.Goal.PLAN,
        team=team,
        parent=parent,
    )


def _page(
    user: User,
    datasets: list[Dataset],
    parent: Job | None,
    from_model: TrainedModel | None,
    values: Mapping[str, str],
    chosen: str,
    extra: Mapping[str, str],
    *,
    name: str,
    is_lost: bool,
    error: RequestError | None = None,
) -> NewRunPage:
    said = [line.strip() for line in error.seen.split("\n") if line.strip()] if error else []
    errors = errors_by_field(said)
    fields_of = {line: field for field, line in errors.items()}
    teams: list[Group] = list(user.groups.order_by("name"))
    chosen_team = values.get("team", str(parent.team_id or "") if parent else "")
    return NewRunPage(
        name=name,
        datasets=tuple(Option(str(one.pk), _dataset_words(one), str(one.pk) == chosen) for one in datasets),
        others=tuple(
            (role, label, tuple(Option(str(one.pk), one.name, str(one.pk) == extra.get(role)) for one in datasets))
            for role, label in _OTHERS
        ),
        teams=tuple(Option(str(team.pk), team.name, str(team.pk) == chosen_team) for team in teams),
        fields=make_fields(values, errors),
        groups=make_groups(values, errors),
        parent=parent,
        from_model=from_model,
        is_model_lost=is_lost,
        problem=error.what if error else "",
        lines=tuple(Line(line, fields_of.get(line, "")) for line in said),
        try_next=tuple(error.try_next) if error else (),
        has_datasets=bool(datasets),
    )


def _dataset_words(dataset: Dataset) -> str:
    rows = dataset.facts.get("rows") if isinstance(dataset.facts, dict) else None
    task = dataset.facts.get("task") if isinstance(dataset.facts, dict) else None
    said = ", ".join(str(part) for part in (f"{rows:,} rows" if isinstance(rows, int) else "", task) if part)
    return f"{dataset.name} ({said})" if said else dataset.name


def _visible(rows: QuerySet[Any], pk: str | None) -> Any:
    return rows.filter(pk=int(pk)).first() if pk and pk.isdecimal() and len(pk) < 19 else None
