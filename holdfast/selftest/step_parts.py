"""A training step of each task on every device, compared with the CPU, and steps over many lengths."""

import importlib.util
import sys
from collections.abc import Callable

from holdfast.core.artifacts import write_artifact
from holdfast.core.runfolder import SETTINGS
from holdfast.core.text import human_bytes
from holdfast.machine.trials import TrialEnd, failed_trial, run_command
from holdfast.selftest.workplace import PartResult, PartState, Workplace

TASKS = {"classify": "bert", "causal": "llama", "two-tower": "bert"}
_MAKE_SECONDS, _STEP_SECONDS = 60.0, 75.0
_LEAST_SECONDS = 10.0  # with less, a slow start would look like a device that hangs
# Of single precision: a correct device is off by about 1e-5, a wrong kernel by far more than this.
_LOSS_TOLERANCE, _GRADIENT_TOLERANCE = 2e-3, 1e-2
# Growth that goes on with every new length ends a long run; a few buffers do not.
_GROWTH_BYTES, _GROWTH_FACTOR = 256_000_000, 1.5


def part(task: str) -> Callable[[Workplace], PartResult]:
    """A part that does the steps of this task on each device."""

    def try_devices(place: Workplace) -> PartResult:
        if missing := [name for name in ("torch", "transformers") if importlib.util.find_spec(name) is None]:
            return PartResult(name=task, state="skipped", summary=f"{missing[0]} is not installed in this Python")
        if place.seconds_left(_STEP_SECONDS) < _LEAST_SECONDS:
            return PartResult(name=task, state="skipped", summary="no time was left")
        if problem := _make_models(place):
            return PartResult(name=task, state="failed", summary=problem)
        cpu = _run(place, task, "cpu")
        devices = next((line["devices"] for line in cpu.lines if isinstance(line.get("devices"), list)), [])
        assert isinstance(devices, list)
        reference = _number(cpu, "loss")
        judged = [_judge("cpu", cpu, None)]
        for device in devices:
            is_late = place.seconds_left(_STEP_SECONDS) < _LEAST_SECONDS
            judged.append(_no_time(device) if is_late else _judge(device, _run(place, task, device), reference))
        states: list[PartState] = [state for state, _, _ in judged]
        worst: PartState = "failed" if "failed" in states else "ok"
        return PartResult(
            name=task,
            state=worst,
            summary="; ".join(summary for _, summary, _ in judged),
            facts={device: facts for device, (_, _, facts) in zip(["cpu", *devices], judged, strict=True)},
        )

    return try_devices


def _make_models(place: Workplace) -> str:
    """Make the tiny models and data once; say what went wrong."""
    if "models" not in place.facts:
        command = [sys.executable, "-m", "holdfast.engine.tiny_tasks", str(place.folder / "tiny")]
        ending = run_command(command, place.seconds_left(_MAKE_SECONDS), place.children)
        place.facts["models"] = "" if ending.code == 0 else _last_line(ending) or f"exit code {ending.code}"
    problem = place.facts["models"]
    return f"tiny models could not be made: {problem}" if problem else ""


def _run(place: Workplace, task: str, device: str) -> TrialEnd:
    folder, tiny = place.folder / "steps" / task, place.folder / "tiny"
    folder.mkdir(parents=True, exist_ok=True)
    settings = {"task": task, "model": str(tiny / TASKS[task]), "prepared": str(tiny / task), "run": str(folder)}
    write_artifact(folder, SETTINGS, {**settings, "device": device, "threads": 1, "batch_size": 8, "epochs": 1})
    seconds = place.seconds_left(_STEP_SECONDS)
    command = [sys.executable, "-m", "holdfast.engine.device_steps", str(folder), str(seconds)]
    ending = run_command(command, seconds, place.children)
    (folder / f"{device.replace(':', '-')}.log").write_text(ending.errors, encoding="utf-8")
    return ending


def _judge(device: str, ending: TrialEnd, expected: float | None) -> tuple[PartState, str, dict[str, object]]:
    """State, summary and facts of one device, compared with the CPU's loss."""
    facts: dict[str, object] = {"code": ending.code, "process_seconds": ending.seconds}
    for line in ending.lines:
        facts |= {name: value for name, value in line.items() if name not in ("doing", "devices")}
    if isinstance(facts.get("unsupported"), str):
        return "ok", f"{device}: not available for this task", facts
    if ending.code != 0:
        trial = failed_trial(device, ending, ending.seconds)
        facts["detail"] = trial.detail
        return "failed", f"{device}: {trial.detail}", facts
    loss, off = _number(ending, "loss"), _number(ending, "gradient_off")
    steps, seconds = _number(ending, "steps") or 0.0, _number(ending, "seconds") or 0.0
    first, last = (_number(ending, name) or 0.0 for name in ("first_bytes", "last_bytes"))
    problems = []
    if expected is not None and (loss is None or not abs(loss - expected) <= _LOSS_TOLERANCE * abs(expected)):
        problems.append(f"loss {loss}, but {expected:.6g} on the CPU")
    if expected is not None and (off is None or not off <= _GRADIENT_TOLERANCE):
        problems.append("gradients cannot be compared" if off is None else f"gradients off by {off:.1%}")
    if last - first > _GROWTH_BYTES and last > _GROWTH_FACTOR * first:
        problems.append("its memory grows with every new length")
    speed = f"{steps / seconds:.1f} steps/s" if seconds else "no time measured"
    memory = f"{human_bytes(first)} to {human_bytes(last)} over {steps:.0f} lengths"
    agreed = [f"off by {off:.0e}"] if expected is not None and off is not None and not problems else []
    summary = f"{device}: {', '.join([*problems, *agreed, speed, memory])}"
    return "failed" if problems else "ok", summary, facts


def _no_time(device: str) -> tuple[PartState, str, dict[str, object]]:
    return "skipped", f"{device}: no time was left", {}


def _number(ending: TrialEnd, name: str) -> float | None:
    """A number that a child printed; None if it is missing or not finite."""
    value = next((line[name] for line in ending.lines if name in line), None)
    return float(value) if isinstance(value, (int, float)) and abs(float(value)) < float("inf") else None


def _last_line(ending: TrialEnd) -> str:
    return next((line.strip()[:200] for line in reversed(ending.errors.splitlines()) if line.strip()), "")
