"""What a user may request: the settings of `train`, checked by `make_request` as on the command line, but no paths.

Data comes from datasets and earlier models come from the registry, both by their number; the agent fills in the paths.
A model may be named as in the catalog or on the hub.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from django.contrib.auth.models import Group, User

from holdfast.core.artifacts import to_plain
from holdfast.core.errors import Problem, RequestError, invalid_settings, read_error
from holdfast.core.setting_values import make_request
from holdfast.core.settings import OPEN_SETTINGS, named
from holdfast.core.text import closest
from holdfast.service.jobs import leases
from holdfast.service.jobs.datasets import read_facts
from holdfast.service.jobs.job_folder import ROLES
from holdfast.service.jobs.models import Dataset, DatasetState, Job, JobGoal, TrainedModel
from holdfast.service.jobs.quotas import check_new_run

_MODEL_NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,95}(?:/[A-Za-z0-9][\w.-]{0,95})?")
_STAND_IN = "/dataset"  # in place of the data's path, which is not known yet
_LONGEST_TEXT, _LONGEST_NAME = 2000, 200
_COLUMNS = ("text_column", "label_column", "group_column")
_READING = ("encoding", "delimiter", "header")  # which decide the names of the columns
_MOST_COLUMNS = 500  # that a survey keeps


def check_settings(given: Mapping[str, object], known: Sequence[Problem] = ()) -> dict[str, Any]:
    """The settings as a job keeps them; all problems are reported at once, the known ones first."""
    problems = [*known]
    problems += [problem for name, value in given.items() if (problem := _problem(name, value))]
    usable = {name: value for name, value in given.items() if not _problem(name, value)}
    try:
        request = make_request({**usable, "data": _STAND_IN})
    except RequestError as error:
        problems += error.problems
    if problems:
        raise invalid_settings(problems)
    names = [_name(name) for name, value in usable.items() if value not in (None, (), [])]
    return {name: to_plain(getattr(request, name)) for name in names}


def submit_run(
    owner: User,
    settings: Mapping[str, object],
    *,
    dataset: Dataset | None = None,
    from_model: TrainedModel | None = None,
    others: Mapping[str, Dataset] | None = None,  # by their role
    name: str = "",
    goal: str = JobGoal.PLAN,
    team: Group | None = None,
    priority: int = 0,
    parent: Job | None = None,
) -> Job:
    """Check a request as a whole and queue it."""
    check_new_run(owner, priority)
    has_data = dataset is not None or from_model is not None
    decided = dataset.choices if dataset else {}
    given = {**{key: value for key, value in decided.items() if key in OPEN_SETTINGS}, **settings}
    missing = () if has_data else (Problem("dataset", "missing; choose the dataset to train on"),)
    asked = check_settings(given, (*missing, *_column_problems(dataset, given)))
    extra = dict(others or {})
    for one in (dataset, *extra.values()):
        _check_ready(one)
    if team is not None and not owner.is_superuser and not owner.groups.filter(pk=team.pk).exists():
        raise invalid_settings([Problem("team", "you are not a member of this team", team.name)])
    request = {**asked, **{role: one.pk for role, one in extra.items()}}
    if from_model is not None:
        if dataset is None:
            _check_data_visible(owner, from_model.job)
        request["from_run"] = from_model.job_id
    return leases.submit(
        owner=owner,
        name=_run_name(name or (dataset.name if dataset else str(from_model))),
        request=request,
        dataset=dataset,
        team=team,
        goal=goal,
        device=str(asked.get("device") or ""),
        priority=priority,
        parent=parent,
    )


def retry_run(
    owner: User,
    job: Job,
    changes: Mapping[str, object],
    *,
    others: Mapping[str, Dataset | None] | None = None,  # by their role; None removes it
    name: str = "",
    goal: str = "",
) -> Job:
    """Queue the same run again as a new one, with some settings changed; None removes a setting."""
    check_new_run(owner, job.priority if job.priority < 0 else 0)
    _check_ready(job.dataset)
    kept = {key: value for key, value in job.request.items() if key in OPEN_SETTINGS}
    referred = {key: value for key, value in job.request.items() if key not in OPEN_SETTINGS}
    for role, one in (others or {}).items():
        _check_ready(one)
        referred = {**referred, role: one.pk} if one else {key: at for key, at in referred.items() if key != role}
    _check_visible(owner, job.dataset_id, referred)
    new = {_name(key): value for key, value in changes.items()}
    given = {key: value for key, value in {**kept, **new}.items() if value is not None}
    asked = check_settings(given, _column_problems(job.dataset, given))
    return leases.submit(
        owner=owner,
        name=_run_name(name or job.name),
        request={**asked, **referred},
        dataset=job.dataset,
        team=job.team,
        goal=goal or job.goal,
        device=str(asked.get("device") or ""),
        priority=job.priority if owner.is_superuser else min(0, job.priority),
        parent=job,
    )


def _problem(name: str, value: object) -> Problem | None:
    """Why users may not set this, or why it cannot be kept; None when it may be right."""
    setting = named(name)
    if setting and not setting.is_open:
        return Problem(
            setting.name,
            "cannot be set here: the service takes its data from the dataset you select and chooses the folders itself",
        )
    texts = [str(item) for item in value] if isinstance(value, (list, tuple)) else [str(value)]
    if any(len(text) > _LONGEST_TEXT for text in texts):
        return Problem(setting.name if setting else name[:60], f"longer than {_LONGEST_TEXT:,} characters")
    if setting and setting.name == "model" and value is not None and not _is_model_name(value):
        return Problem(
            "model", "must be the name of a model in the catalog or on the hub, such as minilm", str(value)[:60]
        )
    return None


def _is_model_name(value: object) -> bool:
    """Whether this can be the name of a model, and never a path."""
    return isinstance(value, str) and bool(_MODEL_NAME.fullmatch(value)) and ".." not in value


def _name(given: str) -> str:
    """The name of a setting that may have been given under an alias."""
    setting = named(given)
    return setting.name if setting else given


def _check_ready(dataset: Dataset | None) -> None:
    if dataset is None or dataset.state == DatasetState.READY:
        return
    if dataset.state == DatasetState.REFUSED:
        why = read_error({"what": "the file was refused", **dataset.problem})
        raise RequestError(
            f"the dataset {dataset.name} cannot be used for training",
            found=f"{why.what}: {why.found}" if why.found else why.what,
            try_next=why.try_next,
            setting="dataset",
        )
    raise RequestError(
        f"the dataset {dataset.name} is not ready", found=f"its state is {dataset.state}", setting="dataset"
    )


def _check_visible(owner: User, dataset_id: int | None, referred: Mapping[str, object]) -> None:
    """Refuse a retry on data or a model that this user may not see: a run may be shared while its data is not."""
    wanted = {"dataset": dataset_id, **{role: referred.get(role) for role in ROLES}}
    seen = set(
        Dataset.objects.visible_to(owner).filter(pk__in=filter(None, wanted.values())).values_list("pk", flat=True)
    )
    lost = [role for role, number in wanted.items() if number and number not in seen]
    if lost:
        raise invalid_settings([Problem(role, "deleted, or not shared with you", str(wanted[role])) for role in lost])
    earlier = referred.get("from_run")
    if earlier and not TrainedModel.objects.visible_to(owner).filter(job_id=earlier).exists():
        raise RequestError("the model that this run continues from was deleted, or is not shared with you")


def _check_data_visible(owner: User, earlier: Job) -> None:
    """Refuse to train again on data of an earlier run that this user may not see; the run itself may be shared."""
    used: Job | None = earlier
    while used is not None:
        roles = {role: used.request.get(role) for role in ROLES}
        _check_visible(owner, used.dataset_id, roles)
        before = used.request.get("from_run") if used.dataset_id is None else None
        used = Job.objects.filter(pk=before).first() if before else None


def _column_problems(dataset: Dataset | None, given: Mapping[str, object]) -> list[Problem]:
    """Columns that the survey did not find; a file that is to be read in another way may have others."""
    known = read_facts(dataset).columns if dataset else ()
    if not dataset or not known or len(known) >= _MOST_COLUMNS:
        return []
    asked = {_name(name): value for name, value in given.items()}
    if any(asked.get(how) != dataset.choices.get(how) for how in _READING):
        return []
    return [
        Problem(
            name,
            f"no such column; found: {_some(known)}"
            + (f"; did you mean {guess}?" if (guess := closest(column, known)) else ""),
            repr(column[:60]),
        )
        for name in _COLUMNS
        for column in map(str, _each(asked.get(name)))
        if column not in known
    ]


def _each(value: object) -> list[object]:
    return list(value) if isinstance(value, list | tuple) else [value] if value else []


def _some(names: Sequence[str], most: int = 12) -> str:
    more = f" and {len(names) - most:,} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def _run_name(name: str) -> str:
    words = " ".join(name.split())
    if not words or len(words) > _LONGEST_NAME or not words.isprintable():
        raise invalid_settings([Problem("name", f"must have 1 to {_LONGEST_NAME} printable characters")])
    return words
