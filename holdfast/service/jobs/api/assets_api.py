"""Datasets and finished models: upload, survey, promote, predict, delete."""

from typing import Annotated, Any, Literal

from django.http import HttpRequest
from ninja import File, Form, Router, Status, UploadedFile

from holdfast.core.errors import RequestError
from holdfast.service.jobs import datasets, registry, uploads
from holdfast.service.jobs.api.api_errors import REFUSALS, Conflict, NotFound, Refusal
from holdfast.service.jobs.api.auth import person
from holdfast.service.jobs.api.schemas import (
    ChoicesIn,
    Cursor,
    DatasetOut,
    DatasetsOut,
    Id,
    Limit,
    ModelOut,
    ModelsOut,
    NameIn,
    PredictOut,
    SurveyOut,
    Text,
    TextsIn,
    UploadIn,
)
from holdfast.service.jobs.api.visible_rows import (
    dataset_answer,
    datasets_of,
    find_dataset,
    find_model,
    find_team,
    model_answer,
    models_of,
    page_of,
)
from holdfast.service.jobs.models import Dataset
from holdfast.service.jobs.shown_errors import kept_api_error

datasets_router, models_router = Router(tags=["datasets"]), Router(tags=["models"])


@datasets_router.post("", response={201: DatasetOut, REFUSALS: Refusal})
def upload_dataset(
    request: HttpRequest,
    file: Annotated[UploadedFile, File(description="A table or JSON lines, optionally gzipped.")],
    about: Form[UploadIn],
) -> Any:
    """Upload a file; its survey starts at once."""
    user = person(request)
    dataset = uploads.receive(user, file, about.name, find_team(user, about.team))
    return Status(201, dataset_answer(dataset))


@datasets_router.get("", response={200: DatasetsOut, REFUSALS: Refusal})
def list_datasets(
    request: HttpRequest,
    state: Literal["surveying", "ready", "refused"] | None = None,
    contains: Text | None = None,
    sha256: Text | None = None,
    cursor: Cursor = None,
    limit: Limit = 50,
) -> Any:
    """The datasets that you may see, newest first."""
    asked = {"state": state, "name__icontains": contains, "sha256": sha256}
    rows = datasets_of(person(request)).filter(**{name: value for name, value in asked.items() if value})
    items, following = page_of(rows, cursor, limit)
    return {"items": map(dataset_answer, map(datasets.settle, items)), "next": following}


@datasets_router.get("/{dataset_id}", response={200: DatasetOut, REFUSALS: Refusal})
def get_dataset(request: HttpRequest, dataset_id: Id) -> Any:
    """One dataset."""
    return dataset_answer(_settled(request, dataset_id))


@datasets_router.get("/{dataset_id}/survey", response={200: SurveyOut, REFUSALS: Refusal})
def get_survey(request: HttpRequest, dataset_id: Id) -> Any:
    """The survey of a dataset, and its first rows."""
    dataset = _settled(request, dataset_id)
    return {
        "state": dataset.state,
        "facts": dataset.facts,
        "preview": dataset.preview,
        "problem": kept_api_error(dataset.problem),
    }


@datasets_router.put("/{dataset_id}/choices", response={200: DatasetOut, REFUSALS: Refusal})
def choose(request: HttpRequest, dataset_id: Id, payload: ChoicesIn) -> Any:
    """Set how a dataset is read (task, columns, encoding); it is surveyed again."""
    return dataset_answer(datasets.choose(find_dataset(person(request), dataset_id), payload.choices))


@datasets_router.delete("/{dataset_id}", response={204: None, REFUSALS: Refusal})
def delete_dataset(request: HttpRequest, dataset_id: Id) -> Any:
    """Delete a dataset that no run uses, and its file."""
    try:
        datasets.remove(find_dataset(person(request), dataset_id), person(request))
    except NotFound:
        raise
    except RequestError as error:
        raise Conflict(error.what, found=error.found, try_next=error.try_next) from None
    return Status(204, None)


def _settled(request: HttpRequest, number: int) -> Dataset:
    return datasets.settle(find_dataset(person(request), number))


@models_router.get("", response={200: ModelsOut, REFUSALS: Refusal})
def list_models(
    request: HttpRequest,
    stage: Literal["candidate", "promoted"] | None = None,
    task: Text | None = None,
    name: Text | None = None,
    cursor: Cursor = None,
    limit: Limit = 50,
) -> Any:
    """The models that you may see, newest first."""
    asked = {"stage": stage, "task": task, "name": name}
    rows = models_of(person(request)).filter(**{key: value for key, value in asked.items() if value})
    items, following = page_of(rows, cursor, limit)
    return {"items": map(model_answer, items), "next": following}


@models_router.get("/{model_id}", response={200: ModelOut, REFUSALS: Refusal})
def get_model(request: HttpRequest, model_id: Id) -> Any:
    """One model."""
    return model_answer(find_model(person(request), model_id))


@models_router.post("/{model_id}/promote", response={200: ModelOut, REFUSALS: Refusal})
def promote_model(request: HttpRequest, model_id: Id) -> Any:
    """Promote a version; the promoted version of the same name becomes a candidate."""
    return model_answer(registry.promote(find_model(person(request), model_id)))


@models_router.post("/{model_id}/demote", response={200: ModelOut, REFUSALS: Refusal})
def demote_model(request: HttpRequest, model_id: Id) -> Any:
    """Make a promoted version a candidate again."""
    return model_answer(registry.demote(find_model(person(request), model_id)))


@models_router.put("/{model_id}/name", response={200: ModelOut, REFUSALS: Refusal})
def rename_model(request: HttpRequest, model_id: Id, payload: NameIn) -> Any:
    """Rename a model; if the name is taken, it becomes the next version there."""
    return model_answer(registry.rename(find_model(person(request), model_id), payload.name))


@models_router.post("/{model_id}/predict", response={200: PredictOut, REFUSALS: Refusal})
def predict(request: HttpRequest, model_id: Id, payload: TextsIn) -> Any:
    """The model's answer to each text: labels, a text, or passages."""
    return {"items": registry.predict(find_model(person(request), model_id), payload.texts)}


@models_router.delete("/{model_id}", response={204: None, REFUSALS: Refusal})
def delete_model(request: HttpRequest, model_id: Id) -> Any:
    """Delete a model and its files; the record of its run stays."""
    model = find_model(person(request), model_id)
    try:
        registry.remove(model)
    except RequestError as error:
        raise Conflict(error.what, found=error.found, try_next=error.try_next) from None
    return Status(204, None)
