"""Downloads a model from the hub in a watched child: progress is shown, a stall is noticed, every wait is bounded."""

import importlib.util
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from holdfast.core.artifacts import read_artifact
from holdfast.core.errors import Advice, HoldfastError, MachineError, RequestError, install, set_to, type_command
from holdfast.core.event_log import EventSink
from holdfast.core.events import ModelNoted
from holdfast.core.progress import Progress
from holdfast.core.text import closest, human_bytes
from holdfast.machine.hub import cached_models, hub_cache_folder, private_cache_folder
from holdfast.models.catalog import KNOWN
from holdfast.models.store import ModelFolder, all_stored

STALL_SECONDS = 60.0
_FIRST_ANSWER_SECONDS = 25.0
_TRIES = 3
_NAME = re.compile(r"[\w.-]+(/[\w.-]+)?")


class HubUnreachable(MachineError):
    """The hub cannot be reached, and the model is not cached."""


def get_from_hub(name: str, on_progress: Progress, *, offline: bool = False, note: EventSink) -> ModelFolder:
    """Get a model from the hub, or from its cache if the hub cannot be reached."""
    _require_name(name)
    answer = {"error": "unreachable", "text": "--offline was given"} if offline else _fetch(name, on_progress)
    if "folder" in answer:
        return ModelFolder(name=name, folder=Path(answer["folder"]), source="the hub")
    if answer["error"] == "unreachable" and (cached := _cached(name)):
        note(ModelNoted(kind="from_cache", name=name, reason=answer["text"][:80]))
        return ModelFolder(name=name, folder=cached, source="the hub's cache")
    raise _error(name, answer)


def require_on_hub(name: str, on_progress: Progress) -> None:
    """Refuse a name that the hub does not know or does not give access to; an unreachable hub refuses nothing."""
    _require_name(name)
    answer = _fetch_once(name, on_progress, "--ask")
    if answer.get("error") in ("gated", "missing"):
        raise _error(name, answer)


def cached_names() -> list[str]:
    """The models that can be used without a network; among several users of a service, only this user's own."""
    private = private_cache_folder()
    hub = [model.name for model in cached_models(private or hub_cache_folder(os.environ)) if model.complete]
    return hub if private else [*(model.name for model in all_stored()), *hub]


def _cached(name: str) -> Path | None:
    """The newest complete copy of a model in the hub's caches."""
    snapshots = [
        snapshot
        for cache in _caches()
        if any(model.name == name and model.complete for model in cached_models(cache))
        for snapshot in (_folder_in(cache, name) / "snapshots").iterdir()
        if (snapshot / "config.json").exists()
    ]
    return max(snapshots, key=lambda folder: folder.stat().st_mtime, default=None)


def _caches() -> list[Path]:
    """The caches that this user may use."""
    private = private_cache_folder()
    return [hub_cache_folder(os.environ), *([private] if private else [])]


def _folder_in(cache: Path, name: str) -> Path:
    return cache / f"models--{name.replace('/', '--')}"


def _fetch(name: str, on_progress: Progress) -> dict[str, Any]:
    """Run the child to its end; restart it if it stalls."""
    answer: dict[str, Any] = {}
    for attempt in range(_TRIES):
        answer = _fetch_once(name, on_progress, "")
        if answer.get("error") != "stalled":
            return answer
        on_progress(f"the download of {name} stalled; retrying ({attempt + 2} of {_TRIES})", 0, None)
    return answer


def _require_name(name: str) -> None:
    if not _NAME.fullmatch(name) or name.count("/") > 1:
        raise RequestError(
            f"{name!r} is neither a folder nor the name of a model",
            try_next=[
                set_to("model", "minilm"),
                set_to("model", "smollm2"),
                set_to("model", note="from the hub, such as google-bert/bert-base-uncased"),
                set_to("model", placeholder="FOLDER", note="as save_pretrained writes it"),
            ],
            setting="model",
        )
    if importlib.util.find_spec("huggingface_hub") is None:
        raise MachineError("huggingface_hub is not installed", try_next=[install("train")])


def _fetch_once(name: str, on_progress: Progress, how: str) -> dict[str, Any]:
    folders = [_folder_in(cache, name) for cache in _caches()]
    with tempfile.TemporaryDirectory(prefix="holdfast-hub-") as place:
        answer = Path(place, "answer.json")
        command = [sys.executable, "-m", "holdfast.models.fetch", name, str(answer)]
        environment = {
            **os.environ,
            "HF_HUB_DISABLE_PROGRESS_BARS": "1",
            "HF_HUB_DISABLE_TELEMETRY": "1",
            "HF_HUB_DOWNLOAD_TIMEOUT": os.environ.get("HF_HUB_DOWNLOAD_TIMEOUT", "20"),
        }
        with (
            Path(place, "said").open("wb") as said,
            subprocess.Popen(
                [*command, *([how] if how else [])],
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                env=environment,
            ) as process,
        ):
            before, moved_at, seen = sum(map(_bytes_in, folders)), time.monotonic(), 0
            while process.poll() is None:
                whole = read_artifact(answer).get("whole")
                done = max(0, sum(map(_bytes_in, folders)) - before)
                if done != seen:
                    seen, moved_at = done, time.monotonic()
                what = f"downloading {name}" if whole else f"asking the hub for {name}"
                on_progress(what, min(done, whole) if whole else done, whole, "bytes")
                if time.monotonic() - moved_at > (STALL_SECONDS if whole else _FIRST_ANSWER_SECONDS):
                    process.kill()
                    process.wait()
                    text = f"no data for {time.monotonic() - moved_at:.0f} s after {human_bytes(done)}"
                    return {"error": "stalled" if whole else "unreachable", "text": text}
                time.sleep(0.2)
        found = read_artifact(answer)
        if "folder" in found or "error" in found:
            return found
        lines = Path(place, "said").read_text(errors="replace").strip().splitlines()
        return {"error": "unknown", "text": lines[-1] if lines else f"ended with {process.returncode}"}


def _error(name: str, answer: dict[str, Any]) -> HoldfastError:
    kind, text = answer["error"], answer["text"]
    if kind == "gated":
        return RequestError(
            f"the model {name} is gated, and this machine has no access to it",
            found=text,
            try_next=[
                f"request access at https://huggingface.co/{name}",
                _log_in("once access is granted"),
                set_to("model", "minilm"),
            ],
            slug="hub-gated",
            setting="model",
        )
    if kind == "missing":
        return RequestError(
            f"there is no model {name} on the hub, or it is private",
            found=text,
            try_next=[
                *_guess(name),
                "check the spelling; names look like google-bert/bert-base-uncased",
                _log_in("if the model is private"),
            ],
            setting="model",
        )
    cached = ", ".join(cached_names()[:8]) or "none"
    if kind in ("unreachable", "stalled"):
        return HubUnreachable(
            f"the hub cannot be reached, and {name} is not cached",
            found=f"{text}; models on this machine: {cached}",
            try_next=[
                *_guess(name),
                type_command(f"hf download {name} --local-dir my-model", note="on a machine with a network"),
                set_to("model", placeholder="FOLDER", note="the downloaded copy"),
                set_to("model", "minilm", note="needs no hub; for classify and two-tower"),
                set_to("model", "smollm2", note="needs no hub; for causal"),
            ],
            slug="hub-offline",
            setting="model",
        )
    if kind == "disk":
        return MachineError(f"the disk is full: no room for {name}", found=text, slug="disk-full")
    return MachineError(f"{name} could not be downloaded from the hub", found=text)


def _log_in(note: str) -> Advice | str:
    """How this user gives a hub token: a user of the job service has no terminal on this machine."""
    if private_cache_folder():
        return f"save your hub token as HF_TOKEN on your account page, {note}"
    return type_command("hf auth login", note=note)


def _guess(name: str) -> list[Advice]:
    guess = closest(name, [*(model.name for model in KNOWN), *cached_names()])
    return [set_to("model", guess)] if guess else []


def _bytes_in(folder: Path) -> int:
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            try:
                status = Path(parent, name).lstat()
            except OSError:
                continue
            total += status.st_blocks * 512 if hasattr(status, "st_blocks") else status.st_size
    return total
