"""The models on this machine, and how to download one."""

from collections.abc import Iterator

from holdfast.core.errors import RequestError
from holdfast.core.event_log import EventSink
from holdfast.core.progress import Progress, no_progress
from holdfast.core.text import closest, human_bytes, plural
from holdfast.models.catalog import KNOWN, known_model
from holdfast.models.from_hub import cached_names
from holdfast.models.resolve import resolve
from holdfast.models.store import ModelFolder, all_stored, models_folder, stored

__all__ = ("ModelFolder", "get_model", "known_names", "list_models", "render_models")


def list_models() -> dict[str, object]:
    """The models on this machine, and those that can be downloaded without a hub."""
    kept = all_stored()
    return {
        "folder": str(models_folder()),
        "stored": kept,
        "cached": [name for name in cached_names() if name not in {model.name for model in kept}],
        "known": [
            {"name": m.name, "hub": m.hub, "package": m.package, "is_stored": bool(stored(m.name))} for m in KNOWN
        ],
    }


def known_names() -> tuple[str, ...]:
    """The models that have a short name."""
    return tuple(model.name for model in KNOWN)


def render_models() -> str:
    """Write the list for a terminal."""
    return "\n".join(_lines())


def get_model(name: str, on_progress: Progress = no_progress, note: EventSink = lambda event: None) -> ModelFolder:
    """Download a model by its short name or its name on the hub."""
    if "/" not in name and not known_model(name):
        guess = closest(name, [model.name for model in KNOWN])
        raise RequestError(
            f"there is no model {name!r} with a short name",
            found=f"short names: {', '.join(model.name for model in KNOWN)}; other models are ORGANIZATION/NAME",
            try_next=(f"holdfast models get {guess}",) if guess else ("holdfast models",),
        )
    return resolve(name, on_progress, note=note)


def _lines() -> Iterator[str]:
    kept = all_stored()
    names = {model.name for model in kept}
    for model in kept:
        yield f"[ok] {model.name:<12} {human_bytes(model.bytes):>9}  {model.source}"
        yield f"     {model.folder}"
    for name in cached_names():
        if name not in names:
            yield f"[ok] {name}  in the hub's cache"
    for known in KNOWN:
        if known.name not in names:
            yield f"[ ]  {known.name:<12} {human_bytes(known.wheel_bytes):>9}  {known.title}; {known.license}"
            yield f"     holdfast models get {known.name}"
    yield f"{plural(len(kept), 'model')} in {models_folder()}; train downloads what it needs"
