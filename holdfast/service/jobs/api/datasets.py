"""Datasets: upload, list, look at the survey, decide how one is read, delete."""

from typing import Annotated, Any, Literal

from django.http import HttpRequest
from ninja import File, Form, Router, Status, UploadedFile

from holdfast.core.errors import RequestError
from holdfast.service.jobs import datasets, uploads
from holdfast.service.jobs.api.answers import DatasetAnswer, DatasetPage, SurveyAnswer
from holdfast.service.jobs.api.auth import person
from holdfast.service.jobs.api.errors import REFUSALS, Conflict, NotFound, Refusal
from holdfast.service.jobs.api.rows import dataset_answer, datasets_of, find_dataset, find_team, page_of
from holdfast.service.jobs.api.shapes import ChoicesGiven, Cursor, Id, Limit, Text, UploadGiven
from holdfast.service.jobs.models import Dataset
from holdfast.service.jobs.words import key_of, problem_in

router = Router(tags=["datasets"])


@router.post("", response={201: DatasetAnswer, REFUSALS: Refusal})
def upload_dataset(
    request: HttpRequest,
    file: Annotated[UploadedFile, File(description="A table or JSON lines, may be gzipped.")],
    about: Form[UploadGiven],
) -> Any:
    """Upload a file; it is surveyed at once."""
    user = person(request)
    dataset = uploads.receive(user, file, about.name, find_team(user, about.team))
    return Status(201, dataset_answer(dataset))


@router.get("", response={200: DatasetPage, REFUSALS: Refusal})
def list_datasets(
    request: HttpRequest,
    state: Literal["surveying", "ready", "refused"] | None = None,
    contains: Text | None = None,
    sha256: Text | None = None,
    cursor: Cursor = None,
    limit: Limit = 50,
) -> Any:
    """The datasets that you may see, the newest first."""
    asked = {"state": state, "name__icontains": contains, "sha256": sha256}
    rows = datasets_of(person(request)).filter(**{name: value for name, value in asked.items() if value})
    items, following = page_of(rows, cursor, limit)
    return {"items": map(dataset_answer, map(datasets.settle, items)), "next": following}


@router.get("/{dataset_id}", response={200: DatasetAnswer, REFUSALS: Refusal})
def get_dataset(request: HttpRequest, dataset_id: Id) -> Any:
    """One dataset."""
    return dataset_answer(_settled(request, dataset_id))


@router.get("/{dataset_id}/survey", response={200: SurveyAnswer, REFUSALS: Refusal})
def get_survey(request: HttpRequest, dataset_id: Id) -> Any:
    """What was found in it, and its first rows."""
    dataset = _settled(request, dataset_id)
    return {
        "state": dataset.state,
        "facts": dataset.facts,
        "preview": dataset.preview,
        "problem": problem_in(key_of, dataset.problem) if dataset.problem else None,
    }


@router.put("/{dataset_id}/choices", response={200: DatasetAnswer, REFUSALS: Refusal})
def choose(request: HttpRequest, dataset_id: Id, payload: ChoicesGiven) -> Any:
    """Decide how it is read (task, columns, encoding); it is surveyed again."""
    return dataset_answer(datasets.choose(find_dataset(person(request), dataset_id), payload.choices))


@router.delete("/{dataset_id}", response={204: None, REFUSALS: Refusal})
def delete_dataset(request: HttpRequest, dataset_id: Id) -> Any:
    """Delete a dataset that no run uses, and its file."""
    try:
        datasets.remove(find_dataset(person(request), dataset_id), person(request))
    except NotFound:
        raise
    except RequestError as error:
        raise Conflict(error.what, seen=error.seen, try_next=error.try_next) from None
    return Status(204, None)


def _settled(request: HttpRequest, number: int) -> Dataset:
    return datasets.settle(find_dataset(person(request), number))
