"""How a training run ended: more fields for result.json, and the last lines on the screen."""

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from holdfast.core.artifacts import read_artifact
from holdfast.core.old_events import read_events
from holdfast.core.runfolder import DATASET, EVENTS, METRICS, REPORT, RESULT, SAMPLES, attempt_folders, model_folder
from holdfast.core.text import human_bytes, human_seconds
from holdfast.runs.earlier import read_pauses
from holdfast.runs.forecasting import cores_used, cores_words
from holdfast.runs.supervise import Result

NO_LABEL = "it gives no label at all yet: it has learned too little"
MEASURE = "to measure it: --validation FILE, or --validation-share 0.2 cuts rows from the data"
Pauses = Sequence[tuple[float, float]]
_DISTURBED = 0.1  # share of the cores that came or went
_BEST_FIRST = (
    *("accuracy", "macro_f1", "micro_f1", "negative_loss", "loss", "perplexity"),
    *("ndcg@10", "recall@1", "recall@10", "mrr@10"),
)


def describe_result(run: Path, plan: Mapping[str, Any], result: Result) -> dict[str, object]:
    """What result.json holds of a training run beyond what every run has."""
    found: dict[str, object] = {"kind": "train", "task": plan.get("task")}
    if result.state != "finished":
        return {**found, "model": None, "next": [f"holdfast resume {run}"]}
    metrics = read_artifact(run / METRICS)
    splits = {split: _numbers(metrics.get(split)) for split in ("validation", "test") if metrics.get(split)}
    return {
        **found,
        "model": str(model_folder(run)),
        "metrics": splits,
        "forecast": forecast_against(plan, read_attempts(run), read_pauses(run), _peak(run, plan)),
        "next": [f'holdfast predict {run} "..."', f"holdfast report {run}"],
    }


def forecast_against(
    plan: Mapping[str, Any], attempts: Sequence[Sequence[Mapping[str, Any]]], pauses: Pauses, peak_bytes: int | None
) -> dict[str, object]:
    """What was forecast beside what happened, with the error as a share, and what the forecast could not know."""
    forecast = plan.get("forecast") or {}
    made_at = forecast.get("made_at")
    clock = _beside(forecast.get("seconds"), _between(made_at, time.time(), pauses) if made_at else None)
    if made_at:
        clock["lost_seconds"] = round(lost_seconds(attempts, made_at, pauses), 1)
        clock["cores"] = {
            "forecast": forecast.get("cores"),
            "actual": cores_used(attempts[-1], made_at) if attempts else None,
        }
    card = max((int(event.get("card_bytes") or 0) for events in attempts for event in events), default=0)
    return {
        "seconds": clock,
        "peak_bytes": _beside(forecast.get("peak_bytes"), peak_bytes),
        "card_peak_bytes": _beside(forecast.get("card_peak_bytes"), card or None),
    }


def lost_seconds(attempts: Sequence[Sequence[Mapping[str, Any]]], since: float = 0.0, pauses: Pauses = ()) -> float:
    """What ended attempts cost: for each, from the last step that was not done again to the first one after it."""
    lost = 0.0
    done: dict[int, float] = {}  # when each step was first reached
    for events in attempts:
        first = next((event for event in events if event.get("event") == "training"), None)
        steps = [event for event in events if event.get("event") == "step"]
        if first and done and steps:
            known = [at for step, at in done.items() if step < int(first["first_step"])]
            begun = max([since, *known]) if known else max(since, min(done.values()))
            lost += max(0.0, _between(begun, float(steps[0]["time"]), pauses))
        done |= {int(event["step"]): float(event["time"]) for event in steps}
    return lost


def _between(begun: float, ended: float, pauses: Pauses) -> float:
    """How long it was from one time of day to another, without the pauses."""
    return ended - begun - sum(max(0.0, min(ended, end) - max(begun, start)) for start, end in pauses)


def excuses(clock: Mapping[str, Any]) -> list[str]:
    """What the forecast had assumed otherwise, each in a sentence, with its part of the error."""
    said = []
    if lost := clock.get("lost_seconds"):
        said.append(f"{human_seconds(lost)} of it went into attempts that were cut short")
    cores = clock.get("cores") or {}
    before, after = cores.get("forecast"), cores.get("actual")
    if before and after and abs(after / before - 1) > _DISTURBED:
        with_as_much = (clock["actual"] - (lost or 0.0)) * after / before
        whose = "other programs kept the processor busy" if after < before else "other programs left more of it"
        said.append(
            f"{whose}: this run computed with {cores_words(after)}, and with {cores_words(before)} when the forecast "
            f"was made; with as much as then: about {human_seconds(with_as_much)}, "
            f"{_off_by(with_as_much / clock['forecast'] - 1, 'longer', 'shorter')}"
        )
    return said


def gives_no_label(metrics: Mapping[str, Any]) -> bool:
    """True where texts may have any number of labels and got none; one label each is always given, if a wrong one."""
    return metrics.get("micro_f1") == 0 and "accuracy" not in metrics


def nothing_measured(dataset: Mapping[str, Any]) -> str:
    """Say that a finished model was measured on nothing, and why."""
    train = (dataset.get("splits") or {}).get("train")
    all_rows = f" (all {train:,} are for training)" if train else ""
    return f"how good the model is was not measured: there are no rows for validation or test{all_rows}"


def read_attempts(run: Path) -> list[list[dict[str, Any]]]:
    """The engine's own story of every attempt."""
    return [list(read_events(attempt / EVENTS)) for attempt in attempt_folders(run)]


def read_result(run: Path) -> dict[str, Any]:
    """The result of a run; empty when there is none yet."""
    return read_artifact(run / RESULT)


def closing_lines(run: Path, result: Result) -> Iterator[tuple[str, str, str]]:
    """The last lines on the screen: mark, name, text."""
    found, shown = read_result(run), _shown(run)
    if result.state == "stopped":
        yield "[--]", "", f"{result.sentence}; {human_seconds(result.seconds)}"
        yield "", "", f"next   holdfast resume {shown}"
        return
    if result.state == "failed":
        yield "[x]", "", result.sentence
        for remedy in result.remedies[:3]:
            yield "", "", f"try    {remedy}"
        if result.slug and result.slug != "unknown":
            yield "", "", f"more   holdfast explain {result.slug}"
        yield "", "", f"everything that was seen is in {shown}"
        return
    for split in ("validation", "test"):
        if metrics := (found.get("metrics") or {}).get(split):
            yield "[ok]", split, _metric_words(metrics)
            if gives_no_label(metrics):
                yield "[!]", split, f"{NO_LABEL}; more --epochs or a higher --lr"
    if not found.get("metrics"):
        yield "[!]", "", f"{nothing_measured(read_artifact(run / DATASET))}; {MEASURE}"
    yield from _forecast_lines(found.get("forecast") or {})
    yield "[ok]", "", f"{result.sentence}, {human_seconds(result.seconds)}; the model is in {shown}/model"
    yield "", "use it", f'holdfast predict {shown} "..."'
    yield "", "", f'or in Python: from_pretrained("{shown}/model")'
    if (run / REPORT).is_file():
        yield "", "look", f"{shown}/{REPORT}"


def _forecast_lines(forecast: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    clock = forecast.get("seconds") or {}
    said = []
    if clock.get("forecast") and clock.get("actual"):
        off = _off_by(clock["error"], "longer", "shorter")
        said.append(f"took {human_seconds(clock['actual'])}, {off} ({human_seconds(clock['forecast'])})")
    for name, whose in (("peak_bytes", "memory"), ("card_peak_bytes", "the card's memory")):
        memory = forecast.get(name) or {}
        if memory.get("forecast") and memory.get("actual"):
            off = _off_by(memory["error"], "more", "less")
            said.append(f"{human_bytes(memory['actual'])} of {whose}, {off} ({human_bytes(memory['forecast'])})")
    if said:
        yield "[ok]", "forecast", "; ".join(said)
        for words in excuses(clock):
            yield "", "", words


def _off_by(error: float, more: str, less: str) -> str:
    """How far off a forecast was: `12% longer than forecast`."""
    share = f"{abs(error):.0%}"
    return "as forecast" if share == "0%" else f"{share} {more if error > 0 else less} than forecast"


def _metric_words(metrics: Mapping[str, float]) -> str:
    names = [name for name in _BEST_FIRST if name in metrics and name != "negative_loss"] or list(metrics)[:4]
    return ", ".join(f"{name} {metrics[name]:.4g}" for name in names[:5])


def _beside(forecast: float | None, actual: float | None) -> dict[str, object]:
    error = actual / forecast - 1 if forecast and actual else None
    return {"forecast": forecast, "actual": actual, "error": round(error, 4) if error is not None else None}


def _peak(run: Path, plan: Mapping[str, Any]) -> int | None:
    """The most memory that any attempt was seen to hold, since another number of processes was asked for."""
    most, after = 0, int(plan.get("processes_asked_after") or 0)
    for file in (attempt / SAMPLES for attempt in attempt_folders(run)):
        if int(file.parent.name) <= after or not file.exists():
            continue
        for line in file.read_text(encoding="utf-8", errors="replace").splitlines():
            try:
                most = max(most, int(json.loads(line).get("resident_bytes") or 0))
            except (ValueError, TypeError, AttributeError):
                continue
    return most or None


def _numbers(found: object) -> dict[str, float]:
    if not isinstance(found, dict):
        return {}
    return {
        name: value for name, value in found.items() if isinstance(value, (int, float)) and not isinstance(value, bool)
    }


def _shown(path: Path) -> str:
    try:
        return str(path.relative_to(Path.cwd()))
    except ValueError:
        return str(path)
