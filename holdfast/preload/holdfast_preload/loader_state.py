"""The exact position of a data loader: the random state its order came from, and how many batches it has yielded.

Lightning resumes in the middle of an epoch with a new order, from its first batch. With this it continues with the next
batch of the old order, and with the random state of that moment, so that the weights come out the same. Iterable
datasets have no order to restore and are left alone.
"""

from __future__ import annotations

import os
import pickle
import random
import sys
from typing import Any, Callable

State = dict[str, Any]
_MAP_STYLE = 0  # torch's number for datasets with an index

is_recorded = False  # turned on by Lightning's Trainer
pending: list[tuple[Callable[[Any], int], list[Any]]] = []  # finds a loader's index, and the states to restore


def random_state() -> State:
    """The state of every random generator in use, as plain values."""
    state: State = {"python": random.getstate()}
    numpy: Any = sys.modules.get("numpy")
    if numpy is not None and hasattr(numpy, "random"):
        state["numpy"] = numpy.random.get_state()
    torch: Any = sys.modules.get("torch")
    if torch is not None:
        state["torch"] = torch.get_rng_state()
        if torch.cuda.is_available() and torch.cuda.is_initialized():
            state["cuda"] = torch.cuda.get_rng_state_all()
        if torch.backends.mps.is_available():
            state["mps"] = torch.mps.get_rng_state()
    return state


def set_random_state(state: State) -> None:
    """Restore a random state."""
    random.setstate(state["python"])
    if "numpy" in state:
        sys.modules["numpy"].random.set_state(state["numpy"])
    torch: Any = sys.modules.get("torch")
    if torch is not None and "torch" in state:
        torch.set_rng_state(state["torch"])
        if "cuda" in state and torch.cuda.is_available() and len(state["cuda"]) == torch.cuda.device_count():
            torch.cuda.set_rng_state_all(state["cuda"])
        if "mps" in state and torch.backends.mps.is_available():
            torch.mps.set_rng_state(state["mps"])


def made(loader: Any, make: Callable[[Any], Any]) -> Any:
    """Make a loader's iterator: a new one with its random state, or one at an earlier attempt's position."""
    for which, states in pending:
        at = which(loader)
        if at >= 0 and states[at] is not None:
            state, states[at] = states[at], None
            return _restored(loader, state, make)
    before = random_state()
    iterator = make(loader)
    iterator._holdfast_made, iterator._holdfast_first = before, None
    loader.__dict__["_holdfast_iterator"] = iterator
    return iterator


def first_batch(iterator: Any) -> None:
    """Remember the random state at the first batch, from which a loader without workers draws its order."""
    if getattr(iterator, "_holdfast_made", None) is not None and not iterator._num_yielded:
        iterator._holdfast_first = random_state() if not iterator._num_workers else None


def where(loader: Any) -> State | None:
    """A loader's position, or None if it cannot be restored."""
    iterator = loader.__dict__.get("_holdfast_iterator")
    if iterator is None or not hasattr(loader, "batch_sampler") or not _has_length(loader):
        return None
    return {
        "made": iterator._holdfast_made,
        "first": iterator._holdfast_first,
        "taken": iterator._num_yielded,
        "length": len(loader),
        "now": random_state(),
    }


def write(path: str, states: list[State | None]) -> None:
    """Write the loaders' positions, completely or not at all."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path + ".draft", "wb") as file:
        pickle.dump(states, file)
    os.replace(path + ".draft", path)


def read(path: str) -> list[State | None]:
    """Read the loaders' positions; empty if there are none.

    Unpickling is acceptable here: the file is in this run's own folder, next to checkpoints that Lightning unpickles.
    """
    try:
        with open(path, "rb") as file:
            return list(pickle.load(file))
    except (OSError, ValueError, EOFError, pickle.UnpicklingError):
        return []


def _restored(loader: Any, state: State, make: Callable[[Any], Any]) -> Any:
    if state["taken"] >= state["length"]:  # the epoch was over: the next one begins
        set_random_state(state["now"])
        return made(loader, make)
    set_random_state(state["made"])
    iterator = make(loader)
    iterator._holdfast_made, iterator._holdfast_first = state["made"], state["first"]
    loader.__dict__["_holdfast_iterator"] = iterator
    if state["first"] is not None:
        set_random_state(state["first"])
    if iterator._num_workers:
        for _ in range(state["taken"]):
            next(iterator)
    else:
        for _ in range(state["taken"]):
            iterator._next_index()
        iterator._num_yielded = state["taken"]
    set_random_state(state["now"])
    return iterator


def _has_length(loader: Any) -> bool:
    return getattr(loader, "_dataset_kind", None) == _MAP_STYLE and len(loader) > 0
