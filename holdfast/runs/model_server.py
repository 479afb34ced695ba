"""Keeps a finished model loaded in a child process and asks it one question at a time; this process never imports
torch.

The two speak JSON lines over pipes. The child's other output goes to a separate file, so no pipe must be drained; its
last lines are in the error if it dies.
"""

import json
import os
import select
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

import msgspec

from holdfast.core.errors import HoldfastError, MachineError, RequestError, install, read_error
from holdfast.core.records import PredictOptions
from holdfast.core.text import human_seconds
from holdfast.logs.exits import exit_status
from holdfast.runs.finished_model import FinishedModel, find_model
from holdfast.runs.observation_wording import observation_text

_LOAD_SECONDS = 300.0  # importing torch alone took 70 s on a busy machine
_SHOWN_CHARACTERS = 600
_CHUNK_BYTES = 65_536
_LONGEST_ANSWER_BYTES = 4_000_000


class ModelServer:
    """One loaded model. Questions wait for each other."""

    def __init__(self, model: FinishedModel, options: PredictOptions):
        self.is_chat = model.is_chat
        self._lock = threading.Lock()
        self._held = b""
        self._log: IO[bytes] = tempfile.TemporaryFile(prefix="holdfast-model-")  # noqa: SIM115 - closed with the server
        self._child = subprocess.Popen(
            [sys.executable, "-m", "holdfast.engine.predict.stdio_server"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env={**os.environ, "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"},
        )
        self._job = msgspec.json.encode(model.job(options))
        self._is_ready = False

    @property
    def is_alive(self) -> bool:
        """Whether it can still answer."""
        return self._child.poll() is None

    def ask(self, text: str, limit_seconds: float) -> dict[str, Any]:
        """The model's answer to a text; the first question waits until the model is loaded."""
        row = {"turns": [["user", text]]} if self.is_chat else {"text": text}
        with self._lock:
            if not self._is_ready:
                self._answer(self._job, _LOAD_SECONDS, "the model was not loaded")
                self._is_ready = True
            return self._answer(json.dumps(row).encode(), limit_seconds, "the model gave no answer")

    def close(self) -> None:
        """End the child."""
        if self.is_alive:
            self._child.kill()
        self._child.wait()
        for pipe in (self._child.stdin, self._child.stdout, self._log):
            if pipe is not None:
                try:
                    pipe.close()
                except OSError:  # what was not written yet has nowhere to go
                    continue

    def _answer(self, question: bytes, limit_seconds: float, too_late: str) -> dict[str, Any]:
        try:
            assert self._child.stdin is not None
            self._child.stdin.write(question + b"\n")
            self._child.stdin.flush()
            line = self._line(limit_seconds)
        except (BrokenPipeError, EOFError):
            raise self._death() from None
        except TimeoutError:
            self._child.kill()  # a late answer would be taken for the answer to the next question
            raise MachineError(
                f"{too_late} within {human_seconds(limit_seconds)}", try_next=("try a shorter text",)
            ) from None
        said: dict[str, Any] = json.loads(line)
        if "error" in said:
            raise _refusal(said["error"])
        return said

    def _line(self, limit_seconds: float) -> bytes:
        assert self._child.stdout is not None
        ends, pipe = time.monotonic() + limit_seconds, self._child.stdout.fileno()
        while b"\n" not in self._held:
            wait = ends - time.monotonic()
            if wait <= 0 or not select.select([pipe], [], [], wait)[0]:
                raise TimeoutError
            chunk = os.read(pipe, _CHUNK_BYTES)
            if not chunk or len(self._held) > _LONGEST_ANSWER_BYTES:
                raise EOFError
            self._held += chunk
        line, _, self._held = self._held.partition(b"\n")
        return line

    def _death(self) -> HoldfastError:
        try:
            code = self._child.wait(10)
        except subprocess.TimeoutExpired:
            self._child.kill()
            code = self._child.wait()
        self._log.seek(0)
        lines = self._log.read().decode("utf-8", "replace").strip().splitlines()
        if any("No module named" in line and "holdfast" not in line for line in lines):
            return RequestError(
                "using a model needs an extra that is not installed",
                found=lines[-1],
                try_next=[install("train")],
            )
        words = observation_text(exit_status(code))
        found = "\n".join(lines[-6:])[-_SHOWN_CHARACTERS:] or "it printed nothing"
        return MachineError(f"the process that runs the model ended with {words}", found=found)


def open_model_server(run: Path, options: PredictOptions) -> ModelServer:
    """Start the child for the model of a run; it loads until the first question is answered."""
    return ModelServer(find_model(run), options)


def _refusal(said: Mapping[str, Any]) -> HoldfastError:
    return read_error({**said, "exit_code": RequestError.exit_code})
