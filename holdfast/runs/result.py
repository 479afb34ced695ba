"""How a training run ended: more fields for result.json, and the last lines on the screen."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from holdfast.core.artifacts import read_artifact
from holdfast.core.records import Result
from holdfast.core.runfolder import DATASET, REPORT, RESULT
from holdfast.core.text import human_bytes, human_seconds
from holdfast.runs.proof_wording import cores_words

NO_LABEL = "it gives no label at all yet: it has learned too little"
MEASURE = "to measure it: --validation FILE, or --validation-share 0.2 cuts rows from the data"
_DISTURBED = 0.1  # share of the cores that came or went
_BEST_FIRST = (
    *("accuracy", "macro_f1", "micro_f1", "negative_loss", "loss", "perplexity"),
    *("ndcg@10", "recall@1", "recall@10", "mrr@10"),
)


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


def _shown(path: Path) -> str:
    try:
        return str(path.relative_to(Path.cwd()))
    except ValueError:
        return str(path)
