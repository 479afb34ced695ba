"""Loaded models for predictions: a few at a time, each in a child process that ends when it is idle.

The children belong to this web process and end with it.
"""

import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from holdfast.core.errors import HoldfastError, RequestError
from holdfast.core.records import PredictOptions
from holdfast.runs.model_server import ModelServer, open_model_server

AT_ONCE = 2
IDLE_SECONDS = 240.0
ANSWER_SECONDS = 60.0
LONGEST_TEXT = 20_000
_OPTIONS = PredictOptions(max_new_tokens=200)
_SWEEP_SECONDS = 15.0


@dataclass(slots=True)
class PooledModel:
    """A model's process, its number of open requests, and when the last one ended."""

    process: ModelServer
    asking: int = 0
    used: float = field(default_factory=time.monotonic)


_loaded: dict[Path, PooledModel] = {}
_lock = threading.Lock()
_sweeper: threading.Thread | None = None


def ask(run: Path, text: str, limit_seconds: float = ANSWER_SECONDS) -> dict[str, Any]:
    """The answer of a run's model to a text."""
    text = text.strip()
    if not text:
        raise RequestError("the text is empty", try_next=("enter a text",))
    if len(text) > LONGEST_TEXT:
        raise RequestError(
            f"the text is too long; the limit is {LONGEST_TEXT:,} characters",
            found=f"{len(text):,} characters",
        )
    loaded = _take(run)
    try:
        return loaded.process.ask(text, limit_seconds)
    except HoldfastError as error:
        error.found = error.found.replace(f"{run}/", "").replace(str(run), "its run")
        error.what = error.what.replace(f"{run}/", "").replace(str(run), "its run")
        raise
    finally:
        _give_back(run, loaded)


def forget(run: Path) -> None:
    """End the process of a model, as before its files are deleted."""
    with _lock:
        loaded = _loaded.pop(run, None)
    if loaded:
        loaded.process.close()


def sweep(now: float | None = None) -> int:
    """End idle processes; return how many are left."""
    now = time.monotonic() if now is None else now
    with _lock:
        old = [run for run, one in _loaded.items() if not one.asking and now - one.used > IDLE_SECONDS]
        ended = [_loaded.pop(run) for run in old]
        left = len(_loaded)
    for one in ended:
        one.process.close()
    return left


def _take(run: Path) -> PooledModel:
    with _lock:
        loaded = _loaded.get(run)
        if loaded is None or not loaded.process.is_alive:
            _make_room(run)
            loaded = _loaded[run] = PooledModel(open_model_server(run, _OPTIONS))
            _watch()
        loaded.asking += 1
        return loaded


def _make_room(run: Path) -> None:
    """End the process that has been idle longest; refuse if all are busy. The lock is held."""
    dead = _loaded.pop(run, None)
    if dead:
        dead.process.close()
    if len(_loaded) < AT_ONCE:
        return
    idle = sorted((one.used, name) for name, one in _loaded.items() if not one.asking)
    if not idle:
        raise RequestError(f"{AT_ONCE} other models are in use at the moment", try_next=("try again in a few seconds",))
    _loaded.pop(idle[0][1]).process.close()


def _give_back(run: Path, loaded: PooledModel) -> None:
    with _lock:
        loaded.asking -= 1
        loaded.used = time.monotonic()
        is_dead = not loaded.process.is_alive and _loaded.get(run) is loaded
        if is_dead:
            del _loaded[run]
    if is_dead:
        loaded.process.close()


def _watch() -> None:
    global _sweeper
    if _sweeper is None or not _sweeper.is_alive():
        _sweeper = threading.Thread(target=_sweep_forever, name="model-pool", daemon=True)
        _sweeper.start()


def _sweep_forever() -> None:
    while True:
        time.sleep(_SWEEP_SECONDS)
        sweep()
