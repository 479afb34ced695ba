"""Starts the page of a finished model in a child process, and supervises it until it is stopped."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import msgspec

from holdfast.core.errors import MachineError, RequestError
from holdfast.core.records import DemoJob, PredictOptions
from holdfast.runs.finished_model import FinishedModel
from holdfast.runs.state import read_state
from holdfast.runs.wording import run_title

_LOOPBACK = "127.0.0.1"
_FIRST_PORT, _PORTS = 7860, 40
_LOOK_EVERY_SECONDS = 0.2


def require_gradio() -> None:
    """Refuse early if gradio is missing."""
    if find_spec("gradio") is None:
        raise RequestError(
            "the demo page needs gradio, which is not installed",
            found=f"no gradio in {sys.prefix}",
            try_next=("pip install 'holdfast[demo]'",),
        )


def free_port(requested: int | None) -> int:
    """The requested port, or the first free one from 7860."""
    for port in [requested] if requested else range(_FIRST_PORT, _FIRST_PORT + _PORTS):
        with socket.socket() as trial:
            trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                trial.bind((_LOOPBACK, port))
            except OSError:
                continue
            return port
    which = f"port {requested} is" if requested else f"ports {_FIRST_PORT} to {_FIRST_PORT + _PORTS - 1} are"
    raise RequestError(f"{which} in use or not allowed", try_next=("--port N, with another number",))


def serve_demo(
    model: FinishedModel,
    port: int,
    options: PredictOptions,
    on_ready: Callable[[str], None],
    on_wait: Callable[[str, int, int | None], None],
) -> int:
    """Serve the page until the child ends; returns its exit code. `on_ready` gets the address."""
    job = DemoJob(
        **msgspec.structs.asdict(model.job(options)),
        title=run_title(read_state(model.run)) if model.run else model.folder.name,
        is_chat=model.is_chat,
        prompts=tuple(_prompts(model)),
        port=port,
    )
    child = subprocess.Popen(
        [sys.executable, "-m", "holdfast.engine.predict.gradio_page"],
        stdin=subprocess.PIPE,
        text=True,
        env={**os.environ, "GRADIO_ANALYTICS_ENABLED": "False"},
    )
    assert child.stdin is not None
    try:
        child.stdin.write(msgspec.json.encode(job).decode())
        child.stdin.close()
        while child.poll() is None and not _answers(port):
            on_wait("loading the model", 0, None)
            time.sleep(_LOOK_EVERY_SECONDS)
        if child.poll() is None:
            on_ready(f"http://{_LOOPBACK}:{port}")
        return child.wait()
    except BrokenPipeError:
        raise MachineError("the page could not be started", found=f"the child ended with {child.wait()}") from None
    finally:
        if child.poll() is None:
            child.terminate()
            try:
                child.wait(10)
            except subprocess.TimeoutExpired:
                child.kill()


def _prompts(model: FinishedModel) -> list[str]:
    """Prompts from a language model's training data, as examples."""
    if model.task != "causal" or model.run is None:
        return []
    from holdfast.runs.prediction_inputs import PredictionInputs

    found: list[str] = []
    for name in model.dataset.files[:1] if model.dataset else ():
        try:
            for row in PredictionInputs(model).file(Path(name)):
                turns = row.asked.get("turns") or [["user", row.asked.get("text", "")]]
                found.append(str(turns[-1][1]))
                if len(found) >= 5:
                    break
        except (RequestError, OSError):
            return []
    return found


def _answers(port: int) -> bool:
    with socket.socket() as trial:
        trial.settimeout(0.2)
        return trial.connect_ex((_LOOPBACK, port)) == 0
