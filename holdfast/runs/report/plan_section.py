"""The plan with its reasons, the timings behind it, the forecast, and the machine."""

import dataclasses
import json
from collections.abc import Iterator, Sequence

from holdfast.core.events import FindingReported
from holdfast.core.facts import MachineFacts
from holdfast.core.records import Forecast, ForecastCheck, Proof, TimedCandidate
from holdfast.core.text import human_bytes, human_seconds
from holdfast.runs.proof_wording import candidate_verdict, forecast_basis, proof_reason
from holdfast.runs.report.html import Html, details, join, section, table, tag
from holdfast.runs.report.svg_charts import meter
from holdfast.runs.state import RunState
from holdfast.runs.wording import forecast_reasons, sentence

_NOT_SHOWN = {"run", "prepared"}


def plan_section(state: RunState) -> Html:
    """Every setting with its reason; without a plan, the settings alone."""
    proof = state.records.proof
    rows = [[name, _plain(choice.value), choice.because] for name, choice in state.records.choices.items()]
    settings = dataclasses.asdict(state.settings) if state.settings else {}
    given = [[name, _plain(value)] for name, value in settings.items() if name not in _NOT_SHOWN]
    plain = table(["setting", "value"], given) if given else None
    shown = table(["setting", "value", "because"], rows, class_="reasons") if rows else plain
    return section(
        "The plan",
        shown,
        _timed(proof.candidates) if proof and proof.candidates else None,
        _proof(proof) if proof else None,
        details("All settings of the last attempt" if state.attempts else "All settings", plain)
        if rows and plain
        else None,
        id_="plan",
    )


def forecast_section(state: RunState) -> Html:
    """The forecast next to what happened."""
    forecast, result = state.records.forecast or Forecast(basis="model size"), state.records.result
    check = (result.forecast if result else None) or ForecastCheck()
    rows: list[list[str]] = []
    for words, planned, found, write in (
        ("time", forecast.seconds, check.seconds, human_seconds),
        ("peak memory", forecast.peak_bytes, check.peak_bytes, human_bytes),
        ("peak GPU memory", forecast.card_peak_bytes, check.card_peak_bytes, human_bytes),
    ):
        if found.forecast and found.actual is not None:
            error = found.actual / found.forecast - 1
            rows.append([words, write(found.forecast), write(found.actual), f"{error:+.0%}"])
        elif planned is not None:
            rows.append([words, write(planned), "", ""])
    if not rows:
        return Html("")
    basis = forecast_basis(state.records.forecast) if state.records.forecast else ""
    because = " ".join(sentence(text) for text in (basis, *forecast_reasons(check.seconds)) if text)
    head = ["", "forecast", "actual", "off by"]
    return section(
        "Forecast and actual",
        table(head, rows, numbers=(1, 2, 3)),
        tag("p", because, class_="meta") if because else None,
        id_="forecast",
    )


def machine_section(state: RunState) -> Html:
    """The machine that was used."""
    entries = [
        tag("div", tag("dt", name), tag("dd", value))
        for name, value in _machine(state.records.machine or MachineFacts())
    ]
    reported = {one.slug: one for one in state.history if isinstance(one, FindingReported)}  # a resume reports again
    findings = [
        tag("li", tag("b", f"{one.severity}: "), one.title or one.slug, f" ({one.seen})" if one.seen else "")
        for one in reported.values()
    ]
    return section(
        "The machine",
        tag("dl", entries, class_="facts") if entries else None,
        tag("ul", findings, class_="notes") if findings else None,
        id_="machine",
    )


def _timed(candidates: Sequence[TimedCandidate]) -> Html:
    best = max(one.samples_per_second for one in candidates)
    rows = []
    for one in sorted(candidates, key=lambda one: -one.samples_per_second):
        notes = ["reference" if one.is_reference else "", candidate_verdict(one)]
        rows.append(
            [
                tag("b", one.words) if one.is_chosen else one.words,
                meter(one.samples_per_second / best, f"{one.samples_per_second:,.0f}") if best else "",
                human_bytes(one.peak_bytes) if one.peak_bytes else "",
                "; ".join(filter(None, notes)),
            ]
        )
    head = ["candidate", "examples per second", "peak memory", ""]
    return join(tag("h3", "Timed on this machine, with this model and data"), table(head, rows))


def _proof(proof: Proof) -> Html:
    because = f": {reason}" if (reason := proof_reason(proof)) else ""
    return tag("p", f"Proof: {proof.state}{because}.", class_="meta")


def _machine(facts: MachineFacts) -> Iterator[tuple[str, str]]:
    if facts.os:
        yield "system", " ".join(filter(None, (facts.os, facts.os_version)))
    if facts.chip:
        yield "processor", facts.chip
    if facts.cpu_count:
        yield "usable cores", str(facts.cpu_count)
    if facts.memory_bytes:
        yield "memory", human_bytes(facts.memory_bytes)
    for gpu in facts.gpus:
        yield "GPU", gpu.name + (f", {human_bytes(gpu.memory_bytes)}" if gpu.memory_bytes else "")
    if facts.python_version:
        yield "Python", facts.python_version
    for name in ("torch", "transformers", "tokenizers", "safetensors", "peft"):
        if version := facts.distributions.get(name):
            yield name, version
    for disk in facts.disks:
        if disk.role == "output":
            yield "free disk", human_bytes(disk.free_bytes)
    if facts.in_container:
        yield "container", "yes"


def _plain(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:g}"
    return str(value) if isinstance(value, str | int) else json.dumps(value, ensure_ascii=False)
