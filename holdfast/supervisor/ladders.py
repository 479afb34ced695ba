"""The two fallback ladders: for an unmodified command, and for our own engine.

Both define how a change, in the names of `core.settings.CHANGEABLE`, is written into the settings of an attempt. A
change that means nothing there leaves the settings as they were, and the ladder continues with the next one.
"""

from collections.abc import Mapping
from dataclasses import asdict

from holdfast.core.errors import MachineError, RequestError
from holdfast.core.plan import DEFAULT_MICRO_TOKENS, Fallback
from holdfast.core.settings import COMPUTING_SETTINGS, ENGINE_DEFAULTS, EngineSettings
from holdfast.supervisor.ladder import OF_RANKS, Changes, Ladder

_MOST_HALVINGS = 10
# The preload and our engine always do these.
_ALREADY_DONE = {"PYTHONFAULTHANDLER", "PYTHONUNBUFFERED"}
_FEWEST_MICRO_TOKENS = 64  # fewer than any plan starts with: after a failure, slow is better than not at all

_LOAD_HERE = Fallback("load data in the main process", {"loader_workers": 0}, "slower input")
_SPAWN = Fallback("start worker processes with spawn", {"start_method": "spawn"}, "workers start slower")
_ONE_THREAD = Fallback("compute on one thread", {"threads": 1, "OMP_NUM_THREADS": "1"}, "slower on the CPU")
_NO_COMPILE = Fallback("do not compile the model", {"compile": False, "TORCH_COMPILE_DISABLE": "1"}, "slower steps")
_FEWER_SAVES = Fallback(
    "continue without the checkpoints that do not fit", {"save_on_full_disk": "skip"}, "more work is lost after a crash"
)
# Another hang after this long costs little next to the work done; one thread costs half the speed for good.
_CHANCE_SECONDS = 180.0
_ON_CPU = Fallback("train on the CPU", {"device": "cpu"}, "much slower")
_FEWER_PROCESSES = Fallback(
    "train in half as many processes", {"processes": "halve"}, "slower if each had its own core or GPU"
)


def command_ladder(*, has_accelerator: bool) -> Ladder:
    """The ladder of an unmodified command."""

    def apply(current: Changes, change: Mapping[str, object]) -> Changes:
        return _apply_to_command(current, change, has_accelerator)

    fallbacks = (_LOAD_HERE, _SPAWN, _ONE_THREAD, _NO_COMPILE, _ON_CPU)
    return Ladder(fallbacks=fallbacks, apply=apply, remedies={"disk-full": (_FEWER_SAVES,)})


def engine_ladder(first: EngineSettings | None) -> Ladder:
    """The ladder of our own engine, whose first attempt has these settings."""
    settings = asdict(first) if first else {}
    fallbacks = (
        Fallback("do not compile the model", {"compile": False}, "slower steps"),
        Fallback("pad instead of packing", {"packing": False}, "slower"),
        Fallback("compute in fp32", {"precision": "fp32"}, "slower, more memory"),
        Fallback("smaller micro-batches, same effective batch", {"micro_batch": "halve"}, "a little slower"),
        Fallback("compute on one thread", {"threads": 1}, "slower on the CPU"),
        _FEWER_PROCESSES,
        # torch holds no weights in 4 bits; in full precision they would be another model.
        *(() if settings.get("load_in_4bit") else (_ON_CPU,)),
    )

    def apply(current: Changes, change: Mapping[str, object]) -> Changes:
        return _apply_to_engine(settings, current, change)

    return Ladder(
        fallbacks=fallbacks,
        remedies=dict.fromkeys((*OF_RANKS, "host-oom"), (_FEWER_PROCESSES,)),
        apply=apply,
        final_codes=frozenset({RequestError.exit_code, MachineError.exit_code}),
        chance_seconds=_CHANCE_SECONDS,
    )


def _apply_to_command(current: Changes, change: Mapping[str, object], has_accelerator: bool) -> Changes:
    changes = dict(current)
    for name, value in change.items():
        if name in ("micro_batch", "eval_micro_batch") and value == "halve":
            factor = f"{name}_factor"
            changes[factor] = min(int(str(changes.get(factor, 1))) * 2, 2**_MOST_HALVINGS)
        elif name == "loader_workers" and value == "halve":
            changes[name] = 0  # the script does not say how many it has
        elif name == "device" and (value == "cpu") != has_accelerator:
            continue  # it is on the CPU already, or there is no other device to return to
        elif name not in _ALREADY_DONE:
            changes[name] = value
    return changes


def _apply_to_engine(settings: Mapping[str, object], current: Changes, change: Mapping[str, object]) -> Changes:
    changes = dict(current)
    for name, value in change.items():
        if name in ("micro_batch", "eval_micro_batch"):
            tokens = int(str(changes.get("micro_tokens", settings.get("micro_tokens", DEFAULT_MICRO_TOKENS))))
            changes["micro_tokens"] = max(tokens // 2, min(tokens, _FEWEST_MICRO_TOKENS))
        elif name == "attention":
            changes["packing"] = False
        elif name == "processes":
            changes |= _fewer_processes(settings, changes)
        elif name == "offline" and value:
            changes["HF_HUB_OFFLINE"] = "1"
        elif (name.isupper() and name not in _ALREADY_DONE) or name in COMPUTING_SETTINGS:
            changes[name] = value
    return {
        name: value
        for name, value in changes.items()
        if name.isupper() or name in current or settings.get(name, ENGINE_DEFAULTS.get(name)) != value
    }


def _fewer_processes(settings: Mapping[str, object], changes: Mapping[str, object]) -> dict[str, object]:
    """Half as many processes with the same total of threads; empty for one process or with sharded weights."""
    known = {**settings, **changes}
    count, threads = int(str(known.get("processes") or 1)), int(str(known.get("threads") or 1))
    if count < 2 or known.get("shard"):
        return {}
    is_lowered = threads < int(str(settings.get("threads") or 1))  # a remedy set one thread, so keep it
    return {"processes": count // 2, "threads": threads if is_lowered else threads * count // (count // 2)}
