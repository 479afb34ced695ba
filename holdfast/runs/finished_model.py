"""Finds the finished model of a run folder, or in a model folder."""

import json
from dataclasses import dataclass
from pathlib import Path

import msgspec

from holdfast.core.artifacts import read_artifact
from holdfast.core.errors import RequestError
from holdfast.core.facts import DatasetFacts
from holdfast.core.records import ModelInfo, PredictJob, PredictOptions, read_record
from holdfast.core.runfolder import REQUEST, RESULT, attempt_folders, model_folder
from holdfast.core.settings import EngineSettings
from holdfast.runs.run_path import is_run, no_run

_WANTED = "the folder of a run or of a model"
_PICKLES = ("pytorch_model.bin", "model.pt", "model.pth", "model.ckpt")


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedModel:
    """A model folder and what is known about it."""

    folder: Path
    task: str
    run: Path | None = None  # the run folder it is in
    info: ModelInfo | None = None  # None for a model that Holdfast did not make

    def job(self, options: PredictOptions) -> PredictJob:
        """What a process loads to use this model; a search may use the corpus of the run that made it."""
        if self.run:
            options = msgspec.structs.replace(
                options, run=str(self.run.resolve()), prepared=str(self._prepared(self.run))
            )
        return PredictJob(model=str(self.folder.resolve()), task=self.task, info=self.info, options=options)

    def _prepared(self, run: Path) -> Path:
        found = (read_record(attempt, EngineSettings) for attempt in reversed(attempt_folders(run)))
        known = (Path(settings.prepared) for settings in found if settings)
        return next(filter(Path.is_dir, known), run / "prepared")  # the run may come from another machine

    @property
    def is_chat(self) -> bool:
        """Whether a language model takes chat turns instead of a text to continue."""
        if self.task != "causal":
            return False
        own = (self.folder / "chat_template.jinja").is_file() or "chat_template" in read_artifact(
            self.folder / "tokenizer_config.json"
        )
        return bool(self.info.chat_template) if self.info else own

    @property
    def dataset(self) -> DatasetFacts | None:
        """What is known about its training data; None where nothing is."""
        return read_record(self.run, DatasetFacts) if self.run else None


def find_model(path: Path) -> FinishedModel:
    """The model of a run folder or a model folder; an error that says what is missing."""
    if not path.is_dir():
        raise no_run(path, _WANTED)
    inner = model_folder(path)
    has_run = is_run(path) or _has_weights(inner)
    folder = inner if has_run else path
    if read_artifact(path / REQUEST).get("kind") == "command":
        raise RequestError(
            f"the run {path} supervised your own command",
            found="its model is where the command saves it",
            try_next=("holdfast predict THAT_FOLDER ...", "holdfast train DATA --model THAT_FOLDER"),
        )
    if has_run and not _has_weights(folder) and (first := path / "fold-1").is_dir():
        raise RequestError(
            f"the run {path} has a model for each fold",
            found=", ".join(sorted(one.name for one in path.glob("fold-*"))),
            try_next=(f"use one of them, such as {first}",),
        )
    if has_run and not _has_weights(folder) and read_artifact(path / RESULT).get("state") == "finished":
        raise RequestError(
            f"the run {path} finished, but its model is missing",
            found=f"no weights in {inner}",
            try_next=(f"restore {inner}", "holdfast train DATA --out NEW_FOLDER, to train it again"),
        )
    if has_run and not _has_weights(folder):
        raise RequestError(
            f"the run {path} has no finished model yet",
            found=f"no weights in {inner}",
            try_next=(f"holdfast status {path}", f"holdfast resume {path}"),
        )
    if not _has_weights(folder):
        raise _no_weights(folder)
    info = read_record(folder, ModelInfo)
    run = path if has_run else path.parent if path.name == "model" and (path.parent / "attempts").is_dir() else None
    return FinishedModel(folder=folder, task=info.task if info else _task_of(folder), run=run, info=info)


def _task_of(folder: Path) -> str:
    """The task of a model folder without holdfast.json, by its other files."""
    if (folder / "two_tower.json").is_file() or (folder / "modules.json").is_file():
        return "two-tower"
    named = read_artifact(folder / "config.json").get("architectures") or []
    kinds = {"ForSequenceClassification": "classify", "ForCausalLM": "causal", "LMHeadModel": "causal"}
    for name in map(str, named):
        for ending, task in kinds.items():
            if name.endswith(ending):
                return task
    raise RequestError(
        f"the task of the model in {folder} is unknown",
        found=f"config.json names {json.dumps(named)}; known: classifiers, causal language models, two-tower models",
    )


def _has_weights(folder: Path) -> bool:
    """At most two levels: the path may be a home folder, or the root of the file system."""
    try:
        return any(any(folder.glob(pattern)) for pattern in ("*.safetensors", "*/*.safetensors"))
    except OSError:  # such as in /proc
        return False


def _no_weights(folder: Path) -> RequestError:
    for name in _PICKLES:
        if (folder / name).exists():
            return RequestError(
                f"the weights in {folder} are a pickle, which can run arbitrary code when loaded",
                found=name,
                try_next=("save the model as safetensors: model.save_pretrained(FOLDER)",),
            )
    return no_run(folder, _WANTED)
