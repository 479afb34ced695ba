"""The form of a new run. A run is planned first; training starts only when a user says so."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from django.contrib.auth.decorators import login_required
from django.contrib.auth.models import User
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_http_methods

from holdfast.core.errors import Problem, RequestError, invalid_settings
from holdfast.service.jobs.datasets import read_facts
from holdfast.service.jobs.job_folder import ROLES
from holdfast.service.jobs.models import Dataset, DatasetState, Job, JobGoal, TrainedModel
from holdfast.service.jobs.requests import submit_run
from holdfast.service.jobs.shown_errors import ShownError, label_of, page_error
from holdfast.service.pages.run_form import (
    FormField,
    FormGroup,
    choice_field,
    make_fields,
    make_groups,
    read_settings,
    read_values,
)

_MOST_DATASETS = 500
_LOST_MODEL = "the model to continue from was deleted, or is not shared with you"
_LOST_DATA = "deleted, not shared with you, or no longer ready"
_HELP = {
    "dataset": "Dataset to train on.",
    "validation": "A separate dataset for validation. Default: hold out a share of the rows.",
    "test": "A separate dataset for the final test. Default: hold out a share of the rows.",
    "negatives": "A separate dataset with hard negatives for queries, for search.",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class NewRunPage:
    """What the form shows."""

    name: str
    dataset: FormField
    team: FormField | None
    fields: tuple[FormField, ...]
    groups: tuple[FormGroup, ...]
    parent: Job | None
    from_model: TrainedModel | None
    is_model_lost: bool  # it was to continue from one that is gone, or not shared
    error: ShownError | None
    is_refused: bool  # else the error is only a warning
    has_datasets: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class RunForm:
    """What the user has entered so far, and the rows it refers to."""

    user: User
    values: Mapping[str, str]  # of the controls, by name
    datasets: Mapping[str, Dataset]  # that may be chosen, by number
    parent: Job | None
    from_model: TrainedModel | None
    is_model_lost: bool

    @property
    def lost_data(self) -> tuple[str, ...]:
        """The controls whose dataset, chosen here or by the earlier run, is no longer available."""
        return tuple(role for role in ("dataset", *ROLES) if self.values.get(role, "") not in ("", *self.datasets))


@require_http_methods(["GET", "HEAD", "POST"])
@login_required
def new_run(request: HttpRequest) -> HttpResponse:
    """Show the form; a POST submits the run to be planned."""
    asked = _read(request)
    if request.method != "POST":
        lost = [Problem(role, f"{_LOST_DATA}; choose another, or none") for role in asked.lost_data if asked.parent]
        error = RequestError("some data of that run is no longer available", problems=lost) if lost else None
        return render(request, "pages/run_new.html", {"page": _page(asked, error)})
    try:
        job = _submit(asked, has_model=bool(request.POST.get("from_model")))
    except RequestError as error:
        page = _page(asked, error, is_refused=True)
        return render(request, "pages/run_new.html", {"page": page}, status=422)
    return redirect("run", job.pk)


def _read(request: HttpRequest) -> RunForm:
    user = cast(User, request.user)
    given = request.POST if request.method == "POST" else request.GET
    ready = Dataset.objects.visible_to(user).filter(state=DatasetState.READY).defer("preview")
    parent = _visible(Job.objects.visible_to(user).select_related("dataset", "team"), given.get("from"))
    models, earlier = TrainedModel.objects.visible_to(user), given.get("from_model")
    before = parent.request.get("from_run") if parent and not earlier else None
    from_model = models.filter(job_id=before).first() if before else _visible(models, earlier)
    values = {name: given[name] for name in given}
    return RunForm(
        user=user,
        values=_values_of(parent) if parent and request.method != "POST" else values,
        datasets={str(one.pk): one for one in ready.order_by("-created", "-pk")[:_MOST_DATASETS]},
        parent=parent,
        from_model=from_model,
        is_model_lost=bool(earlier or before) and from_model is None,
    )


def _values_of(parent: Job) -> dict[str, str]:
    """The values of the controls for a retry of a run."""
    data = {"dataset": parent.dataset_id, "team": parent.team_id, **{role: parent.request.get(role) for role in ROLES}}
    return {
        **read_values(parent.request),
        **{name: str(number) for name, number in data.items() if number},
        "name": parent.name,
    }


def _submit(asked: RunForm, *, has_model: bool) -> Job:
    if has_model and asked.is_model_lost:  # it existed when the form was shown
        raise RequestError(_LOST_MODEL, try_next=("send the form again to start without it",))
    values = asked.values
    problems = [Problem(role, f"{_LOST_DATA}; choose another") for role in asked.lost_data]
    team = _visible(asked.user.groups.all(), values.get("team"))
    if values.get("team") and team is None:
        problems.append(Problem("team", "you are not a member of this team"))
    if problems:
        raise invalid_settings(problems)
    return submit_run(
        asked.user,
        read_settings(values),
        dataset=asked.datasets.get(values.get("dataset", "")),
        from_model=asked.from_model,
        others={role: asked.datasets[values[role]] for role in ROLES if values.get(role)},
        name=values.get("name", "").strip(),
        goal=JobGoal.PLAN,
        team=team,
        parent=asked.parent,
    )


def _page(asked: RunForm, error: RequestError | None, *, is_refused: bool = False) -> NewRunPage:
    shown = page_error(error) if error else None
    errors: dict[str, str] = {}
    for one in shown.problems if shown else ():
        errors[one.setting] = "; ".join(filter(None, (errors.get(one.setting), one.text)))
    teams = {str(team.pk): team.name for team in asked.user.groups.order_by("name")}
    chosen = asked.values.get
    return NewRunPage(
        name=chosen("name", ""),
        dataset=_data_field(asked, "dataset", errors, "choose a dataset"),
        team=choice_field(
            "team",
            "Team",
            "Members of the team can see and change the run. Its report shows examples from the data.",
            teams,
            chosen("team", ""),
            "only me",
            errors.get("team", ""),
        )
        if teams
        else None,
        fields=make_fields(asked.values, errors),
        groups=make_groups(asked.values, errors, {"data": [_data_field(asked, one, errors, "none") for one in ROLES]}),
        parent=asked.parent,
        from_model=asked.from_model,
        is_model_lost=asked.is_model_lost,
        error=shown,
        is_refused=is_refused,
        has_datasets=bool(asked.datasets),
    )


def _data_field(asked: RunForm, name: str, errors: Mapping[str, str], none: str) -> FormField:
    options = {number: _dataset_label(one) for number, one in asked.datasets.items()}
    chosen = asked.values.get(name, "")
    return choice_field(name, label_of(name), _HELP[name], options, chosen, none, errors.get(name, ""))


def _dataset_label(dataset: Dataset) -> str:
    facts = read_facts(dataset)
    return f"{dataset.name} ({facts.rows:,} rows, {facts.task})" if facts.task else dataset.name


def _visible(rows: QuerySet[Any], pk: str | None) -> Any:
    return rows.filter(pk=int(pk)).first() if pk and pk.isdecimal() and len(pk) < 19 else None
