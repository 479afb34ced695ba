"""Writes one fact as `doctor -v` lists it."""

from collections.abc import Callable, Mapping
from typing import Any

from holdfast.core.facts import (
    CachedModel,
    DeviceTrial,
    Disk,
    Gpu,
    GpuProcess,
    MachineFacts,
    NativeConflict,
    Power,
    TorchBuild,
    Variable,
)
from holdfast.core.text import human_bytes, plural

HARMLESS = ("shared", "coexists")


def show_fact(name: str, facts: MachineFacts) -> str:
    """One fact as text."""
    value = getattr(facts, name)
    if name == "conflicts":
        return _conflicts(value)
    if name.endswith("_bytes") and value is not None:
        return human_bytes(value)
    return _show(value)


def _show(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {item}" for key, item in sorted(value.items())) or "none"
    if isinstance(value, tuple):
        between = ", " if all(isinstance(item, str) for item in value) else "; "
        return between.join(_show(item) for item in value) or "none"
    words = _WORDS.get(type(value))
    if words:
        return words(value)
    return "none" if value is None or value == "" else str(value)


def _conflicts(pairs: tuple[NativeConflict, ...]) -> str:
    calm = sum(pair.outcome in HARMLESS for pair in pairs)
    texts = [_show(pair) for pair in pairs if pair.outcome not in HARMLESS]
    texts += [f"{plural(calm, 'import order')} with a shared copy or coexisting copies"] if calm else []
    return "; ".join(texts) or "none"


def _gpu(gpu: Gpu) -> str:
    capability = f", capability {gpu.capability}" if gpu.capability else ""
    return f"{gpu.name}{capability}, bf16 {_show(gpu.has_bf16)}"


def _torch(build: TorchBuild) -> str:
    return f"{build.version}, CUDA {build.cuda or 'no'}, ROCm {build.rocm or 'no'}, MPS {_show(build.mps)}"


def _process(process: GpuProcess) -> str:
    held = f", {human_bytes(process.memory_bytes)}" if process.memory_bytes else ""
    return f"{process.name or 'unnamed'} (pid {process.pid}, {process.user or 'unknown user'}{held})"


def _disk(disk: Disk) -> str:
    inodes = f", {disk.free_inodes} files" if disk.free_inodes is not None else ""
    closed = "" if disk.is_writable else ", not writable"
    return f"{disk.role} {disk.path}: {human_bytes(disk.free_bytes)}{inodes} free{closed}"


def _power(power: Power) -> str:
    source = "battery" if power.on_battery else "mains"
    sleep = f"sleeps after {power.sleep_after_minutes} min" if power.sleep_after_minutes else "never sleeps"
    return f"{source}, {sleep}, Low Power Mode {_show(power.low_power_mode)}"


def _model(model: CachedModel) -> str:
    return f"{model.name} {human_bytes(model.bytes)}" + ("" if model.complete else ", not complete")


def _trial(trial: DeviceTrial) -> str:
    return f"{trial.device} {trial.outcome}, {trial.detail}, {trial.seconds:g} s"


def _variable(variable: Variable) -> str:
    return f"{variable.name}={variable.value} {variable.effect}"


def _conflict(pair: NativeConflict) -> str:
    return f"{pair.first} then {pair.second}: {pair.outcome}, {pair.because}"


_WORDS: Mapping[type, Callable[[Any], str]] = {
    Gpu: _gpu,
    TorchBuild: _torch,
    GpuProcess: _process,
    Disk: _disk,
    Power: _power,
    CachedModel: _model,
    DeviceTrial: _trial,
    Variable: _variable,
    NativeConflict: _conflict,
}
