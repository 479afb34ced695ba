"""The folder of downloaded models, each complete or absent, and the check of a model folder."""

import hashlib
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from holdfast.core.artifacts import read_artifact, write_artifact
from holdfast.core.env import cache_folder, private_models_folder
from holdfast.core.errors import RequestError, type_command

_RECORD = "store.json"  # written last: where the model came from
_CONVERTED = "converted"  # a folder in the store; no name of a model reaches into it
_PICKLES = ("pytorch_model*.bin", "*.pt", "*.pth", "*.ckpt")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFolder:
    """A model on this machine."""

    name: str
    folder: Path
    source: str  # where it came from, as text
    bytes: int = 0


def models_folder() -> Path:
    """Where models are kept."""
    return cache_folder() / "models"


def stored(name: str) -> ModelFolder | None:
    """The model with this name in the store, if it is complete."""
    return _complete(name, models_folder() / name.replace("/", "--"))


def _complete(name: str, folder: Path) -> ModelFolder | None:
    record = read_artifact(folder / _RECORD)
    if not record:
        return None
    return ModelFolder(name=name, folder=folder, source=str(record.get("source", "")), bytes=_size(folder))


def all_stored() -> list[ModelFolder]:
    """Every model in the store."""
    home = models_folder()
    names = sorted(path.name for path in home.iterdir() if path.is_dir()) if home.is_dir() else []
    found = (stored(name.replace("--", "/")) for name in names if not name.startswith("."))
    return [model for model in found if model]


def keep(name: str, source: str, write: Callable[[Path], None]) -> ModelFolder:
    """Put a model into the store: written to a draft, renamed when complete."""
    return _keep(name, source, models_folder() / name.replace("/", "--"), write)


def keep_converted(model: ModelFolder, why: str, write: Callable[[Path], None]) -> ModelFolder:
    """A copy of a model in a form that is safe to load, made once for each folder.

    A copy of a model that only one user's token can fetch stays in that user's folder.
    """
    original, private = model.folder.resolve(), private_models_folder()
    is_private = private is not None and original.is_relative_to(private.resolve())
    home = private if private and is_private else models_folder()
    folder = home / _CONVERTED / hashlib.sha256(str(original).encode()).hexdigest()[:16]
    return _complete(model.name, folder) or _keep(model.name, f"{model.source}, converted because {why}", folder, write)


def _keep(name: str, source: str, folder: Path, write: Callable[[Path], None]) -> ModelFolder:
    folder.parent.mkdir(parents=True, exist_ok=True)
    draft = folder.with_name(f".{folder.name}.draft-{os.getpid()}")
    shutil.rmtree(draft, ignore_errors=True)
    try:
        draft.mkdir()
        write(draft)
        write_artifact(draft, _RECORD, {"name": name, "source": source})
        if folder.exists():
            shutil.rmtree(folder)
        draft.rename(folder)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return ModelFolder(name=name, folder=folder, source=source, bytes=_size(folder))


def needs_saving_again(folder: Path) -> str | None:
    """Why a model folder must be converted before use; None if it need not be."""
    if any(folder.glob("*.gguf")) and not any(folder.glob("*.safetensors")):
        return "its weights are GGUF"
    if not any(folder.glob("*.safetensors")) and any(folder.glob("pytorch_model*.bin")):
        return "its weights are pickled"
    if not (folder / "tokenizer.json").is_file() and any(folder.glob("vocab*")):
        return "its tokenizer has the old format"
    return None


def check_folder(folder: Path) -> None:
    """Refuse a folder that is not a model, and name what is missing."""
    if not folder.is_dir():
        raise RequestError(
            f"the model folder {folder} does not exist",
            try_next=["give the folder that holds config.json"],
            setting="model",
        )
    if (folder / "adapter_config.json").is_file() and not (folder / "config.json").is_file():
        raise RequestError(
            f"{folder} contains an adapter, not a full model",
            found="adapter_config.json, but no config.json",
            try_next=["merge it into its base model first: peft's merge_and_unload, then save_pretrained"],
            setting="model",
        )
    if not (folder / "config.json").is_file() and not any(folder.glob("*.gguf")):
        found = ", ".join(sorted(path.name for path in folder.iterdir())[:8]) or "it is empty"
        raise RequestError(
            f"{folder} is not a model: config.json is missing",
            found=found,
            try_next=[
                "give a folder written by save_pretrained",
                type_command("holdfast models", note="lists the models on this machine"),
            ],
            setting="model",
        )
    weights = any(folder.glob("*.safetensors")) or any(folder.glob("query/*.safetensors"))
    if not weights and not any(path for shape in (*_PICKLES, "*.gguf") for path in folder.glob(shape)):
        raise RequestError(f"{folder} contains no weights", found="it has no *.safetensors file", setting="model")


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
