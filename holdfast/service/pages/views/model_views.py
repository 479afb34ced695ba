"""Models: the registry, one model, and trying it out."""

from typing import cast

from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.contrib.auth.models import User
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from holdfast.core.errors import HoldfastError
from holdfast.service.jobs import registry
from holdfast.service.jobs.models import ModelStage, TrainedModel
from holdfast.service.jobs.shown_errors import error_line, page_error
from holdfast.service.pages.model_page import ModelReply, read_answer, read_list, read_model


@require_safe
@login_required
def show_models(request: HttpRequest) -> HttpResponse:
    """All models that this user may see."""
    given = request.GET
    page = read_list(cast(User, request.user), given.get("q", ""), given.get("stage", ""), given.get("page", ""))
    return render(request, "pages/models.html", {"page": page})


@require_safe
@login_required
def show_model(request: HttpRequest, pk: int) -> HttpResponse:
    """One model."""
    return render(request, "pages/model.html", {"page": read_model(_visible(request, pk), request.user)})


@require_http_methods(["GET", "HEAD", "POST"])
@login_required
def try_model(request: HttpRequest, pk: int) -> HttpResponse:
    """Ask the model: only the answer for the page's script, the whole page without it."""
    model = _visible(request, pk)
    if request.method != "POST":
        return redirect("model", pk)
    asked = request.POST.get("text", "")
    try:
        answer = read_answer(asked, registry.predict(model, [asked])[0])
    except HoldfastError as error:
        answer = ModelReply(asked=asked, problem=page_error(error))
    if request.headers.get("X-Requested-With") == "try":
        return render(request, "pages/model_answer.html", {"answer": answer})
    return render(request, "pages/model.html", {"page": read_model(model, request.user, answer)})


@require_POST
@login_required
def promote(request: HttpRequest, pk: int) -> HttpResponse:
    """Promote the model, or make it a candidate again."""
    model = _visible(request, pk)
    if request.POST.get("stage") == ModelStage.CANDIDATE:
        registry.demote(model)
        messages.success(request, f"{model} is a candidate again.")
    else:
        registry.promote(model)
        messages.success(request, f"Promoted {model}.")
    return redirect("model", pk)


@require_POST
@login_required
def rename(request: HttpRequest, pk: int) -> HttpResponse:
    """Rename the model."""
    model = _visible(request, pk)
    try:
        registry.rename(model, request.POST.get("name", ""))
    except HoldfastError as error:
        messages.error(request, error_line(error))
    else:
        messages.success(request, f"Renamed to {model}.")
    return redirect("model", pk)


@require_http_methods(["GET", "HEAD", "POST"])
@login_required
def delete(request: HttpRequest, pk: int) -> HttpResponse:
    """Ask first, then delete the model's files and keep its run."""
    model = _visible(request, pk)
    if request.method != "POST":
        return render(request, "pages/model_delete.html", {"model": model})
    try:
        registry.remove(model)
    except HoldfastError as error:
        messages.error(request, error_line(error))
        return redirect("model", pk)
    messages.success(request, f"Deleted {model}. Its run stays.")
    return redirect("models")


def _visible(request: HttpRequest, pk: int) -> TrainedModel:
    found = TrainedModel.objects.visible_to(request.user).select_related("owner", "team", "job", "job__dataset")
    return cast(TrainedModel, get_object_or_404(found, pk=pk))
