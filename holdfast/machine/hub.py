"""The hub's cache: where it is, which models it contains, and which downloads are incomplete."""

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from holdfast.core.env import private_models_folder
from holdfast.core.facts import Answer, CachedModel


def hub_cache_folder(environ: Mapping[str, str]) -> Path:
    """The folder where huggingface_hub keeps models, by its own rules; the newest variable wins."""
    for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
        if environ.get(name):
            return _expanded(environ[name])
    if environ.get("HF_HOME"):
        return _expanded(environ["HF_HOME"]) / "hub"
    return _expanded(environ.get("XDG_CACHE_HOME") or "~/.cache") / "huggingface" / "hub"


def private_cache_folder() -> Path | None:
    """The cache of hub models that only this user's token can fetch; None where one user owns everything."""
    private = private_models_folder()
    return private / "hub" if private else None


def probe_models() -> Answer[tuple[CachedModel, ...]]:
    """The models in the hub's cache."""
    folder = hub_cache_folder(os.environ)
    if not folder.is_dir():
        return Answer((), f"{folder} does not exist yet")
    return Answer(tuple(cached_models(folder)), str(folder))


def cached_models(cache: Path) -> Iterator[CachedModel]:
    """Read the cache's own layout: models--ORG--NAME with blobs, refs and snapshots."""
    for folder in sorted(cache.glob("models--*")):
        yield CachedModel(
            name=folder.name.removeprefix("models--").replace("--", "/"),
            bytes=sum(_sizes(folder)),
            complete=_is_complete(folder),
        )


def _is_complete(folder: Path) -> bool:
    """False for an interrupted download: an unfinished blob, a dangling link, a missing shard."""
    if any(folder.glob("blobs/*.incomplete")):
        return False
    snapshots = [path for path in folder.glob("snapshots/*") if path.is_dir()]
    return bool(snapshots) and all(_is_whole(snapshot) for snapshot in snapshots)


def _is_whole(snapshot: Path) -> bool:
    if any(path.is_symlink() and not path.exists() for path in snapshot.rglob("*")):
        return False
    # A repository may list its shards twice, for two formats of which one was downloaded.
    indexes = [_shards_are_there(index) for index in snapshot.glob("*.index.json")]
    return any(indexes) or not indexes


def _shards_are_there(index: Path) -> bool:
    try:
        shards = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False
    return all((index.parent / shard).exists() for shard in shards)


def _sizes(folder: Path) -> Iterator[int]:
    """The size of the real files; links in snapshots point to blobs and would count twice."""
    for parent, _, names in os.walk(folder):
        for name in names:
            path = Path(parent, name)
            if not path.is_symlink():
                yield path.lstat().st_size


def _expanded(path: str) -> Path:
    return Path(os.path.expandvars(path)).expanduser()
