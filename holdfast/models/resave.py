"""Converts a model into a plain Hugging Face folder (safetensors, tokenizer.json) in a child process."""

import subprocess
import sys
import tempfile
import time
from pathlib import Path

from holdfast.core.errors import MachineError, RequestError, install
from holdfast.core.progress import Progress

_LIMIT_SECONDS = 1800.0


def save_again(source: Path, target: Path, what: str, on_progress: Progress) -> None:
    """Save the model in `source` into the folder `target`."""
    command = (sys.executable, "-m", "holdfast.engine.convert_model", str(source), str(target))
    begun = time.monotonic()
    with tempfile.TemporaryFile() as said:
        with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=said, stderr=said) as process:
            while process.poll() is None:
                on_progress(what, 0, None)
                if time.monotonic() - begun > _LIMIT_SECONDS:
                    process.kill()
                    raise MachineError(f"{what} did not end within {_LIMIT_SECONDS / 60:.0f} minutes")
                time.sleep(0.1)
        said.seek(0)
        lines = said.read().decode(errors="replace").strip().splitlines()
    if process.returncode:
        text = lines[-1] if lines else f"the child ended with {process.returncode}"
        if "No module named" in text:
            raise MachineError(f"{what} needs a package", found=text, try_next=[install("train")])
        raise RequestError(f"the model in {source} cannot be saved as a plain folder", found=text[:400])
