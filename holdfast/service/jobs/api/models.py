"""The registry of finished models: list, look at one, promote, use, delete."""

from typing import Any, Literal

from django.http import HttpRequest
from ninja import Router, Status

from holdfast.core.errors import RequestError
from holdfast.service.jobs import registry
from holdfast.service.jobs.api.answers import ModelAnswer, ModelPage, PredictAnswer
from holdfast.service.jobs.api.auth import person
from holdfast.service.jobs.api.errors import REFUSALS, Conflict, Refusal
from holdfast.service.jobs.api.rows import find_model, model_answer, models_of, page_of
from holdfast.service.jobs.api.shapes import Cursor, Id, Limit, NameGiven, Text, TextsGiven

router = Router(tags=["models"])


@router.get("", response={200: ModelPage, REFUSALS: Refusal})
def list_models(
    request: HttpRequest,
    stage: Literal["candidate", "promoted"] | None = None,
    task: Text | None = None,
    name: Text | None = None,
    cursor: Cursor = None,
    limit: Limit = 50,
) -> Any:
    """The models that you may see, the newest first."""
    asked = {"stage": stage, "task": task, "name": name}
    rows = models_of(person(request)).filter(**{key: value for key, value in asked.items() if value})
    items, following = page_of(rows, cursor, limit)
    return {"items": map(model_answer, items), "next": following}


@router.get("/{model_id}", response={200: ModelAnswer, REFUSALS: Refusal})
def get_model(request: HttpRequest, model_id: Id) -> Any:
    """One model."""
    return model_answer(find_model(person(request), model_id))


@router.post("/{model_id}/promote", response={200: ModelAnswer, REFUSALS: Refusal})
def promote_model(request: HttpRequest, model_id: Id) -> Any:
    """Make it the one that people should use."""
    return model_answer(registry.promote(find_model(person(request), model_id)))


@router.post("/{model_id}/demote", response={200: ModelAnswer, REFUSALS: Refusal})
def demote_model(request: HttpRequest, model_id: Id) -> Any:
    """Make it a candidate again."""
    return model_answer(registry.demote(find_model(person(request), model_id)))


@router.put("/{model_id}/name", response={200: ModelAnswer, REFUSALS: Refusal})
def rename_model(request: HttpRequest, model_id: Id, payload: NameGiven) -> Any:
    """Give it another name; under a name that is taken it becomes the next version."""
    return model_answer(registry.rename(find_model(person(request), model_id), payload.name))


@router.post("/{model_id}/predict", response={200: PredictAnswer, REFUSALS: Refusal})
def predict(request: HttpRequest, model_id: Id, payload: TextsGiven) -> Any:
    """What the model says to each text: labels, an answer, or passages."""
    return {"items": registry.predict(find_model(person(request), model_id), payload.texts)}


@router.delete("/{model_id}", response={204: None, REFUSALS: Refusal})
def delete_model(request: HttpRequest, model_id: Id) -> Any:
    """Delete a model and its files; the record of its run stays."""
    model = find_model(person(request), model_id)
    try:
        registry.remove(model)
    except RequestError as error:
        raise Conflict(error.what, seen=error.seen, try_next=error.try_next) from None
    return Status(204, None)
