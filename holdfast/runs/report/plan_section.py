"""The plan with its reasons, the timings it was chosen by, the forecast, and the machine."""

import json
from collections.abc import Iterator, Mapping
from typing import Any, TypeGuard

from holdfast.core.text import human_bytes, human_seconds
from holdfast.runs.report.html import Html, details, join, section, table, tag
from holdfast.runs.report.svg_charts import meter
from holdfast.runs.state import RunState
from holdfast.runs.wording import forecast_reasons, sentence

_NOT_SHOWN = {"run", "prepared"}
_FORECAST = (
    ("seconds", "time", human_seconds),
    ("peak_bytes", "peak memory", human_bytes),
    ("card_peak_bytes", "peak GPU memory", human_bytes),
)


def plan_section(state: RunState) -> Html:
    """Every setting with its reason; without a plan, the settings alone."""
    choices = state.records.plan.get("choices")
    rows = []
    if isinstance(choices, dict):
        rows = [
            [name, _plain(choice.get("value")), choice.get("because", "")]
            for name, choice in choices.items()
            if isinstance(choice, dict)
        ]
    given = {name: value for name, value in state.settings.items() if name not in _NOT_SHOWN}
    plain = table(["setting", "value"], [[name, _plain(value)] for name, value in given.items()]) if given else None
    shown = table(["setting", "value", "because"], rows, class_="reasons") if rows else plain
    return section(
        "The plan",
        shown,
        _timed(state.records.plan.get("measured")),
        _proof(state.records.plan.get("proof")),
        details("All settings of the last attempt" if state.attempts else "All settings", plain)
        if rows and plain
        else None,
        id_="plan",
    )


def forecast_section(state: RunState) -> Html:
    """The forecast next to what happened."""
    compared = state.records.result.get("forecast")
    rows: list[list[str]] = []
    reasons: list[str] = []
    for name, words, write in _FORECAST:
        found = compared.get(name) if isinstance(compared, dict) else None
        planned = (
            (state.records.plan.get("forecast") or {}).get(name)
            if isinstance(state.records.plan.get("forecast"), dict)
            else None
        )
        if isinstance(found, dict) and _is_number(found.get("forecast")) and _is_number(found.get("actual")):
            error = found["actual"] / found["forecast"] - 1 if found["forecast"] else 0.0
            rows.append([words, write(found["forecast"]), write(found["actual"]), f"{error:+.0%}"])
            reasons += forecast_reasons(found)
        elif _is_number(planned):
            rows.append([words, write(planned), "", ""])
    if not rows:
        return Html("")
    said = (state.records.plan.get("forecast") or {}).get("because")
    because = " ".join(sentence(text) for text in (str(said or ""), *reasons) if text)
    head = ["", "forecast", "actual", "off by"]
    return section(
        "Forecast and actual",
        table(head, rows, numbers=(1, 2, 3)),
        tag("p", because, class_="meta") if because else None,
        id_="forecast",
    )


def machine_section(state: RunState) -> Html:
    """What the machine was."""
    entries = [tag("div", tag("dt", name), tag("dd", value)) for name, value in _machine(state.records.machine)]
    findings = [
        tag(
            "li",
            tag("b", f"{one.get('severity', '')}: "),
            one.get("title") or one.get("slug", ""),
            f" ({one['seen']})" if one.get("seen") else "",
        )
        for one in state.records.doctor.get("findings") or ()
        if isinstance(one, dict) and one.get("severity") in ("blocker", "warning")
    ]
    return section(
        "The machine",
        tag("dl", entries, class_="facts") if entries else None,
        tag("ul", findings, class_="notes") if findings else None,
        id_="machine",
    )


def _timed(measured: object) -> Html | None:
    found = [one for one in measured if isinstance(one, dict)] if isinstance(measured, list) else []
    if not found:
        return None
    unit = next(
        (u for u in ("samples_per_second", "tokens_per_second") if any(_is_number(one.get(u)) for one in found)), ""
    )
    best = max((float(one[unit]) for one in found if _is_number(one.get(unit))), default=0.0)
    rows = []
    for one in sorted(found, key=lambda one: -(one.get(unit) or 0)):
        speed = one.get(unit)
        said = [
            "chosen" if one.get("is_chosen") else "",
            "reference" if one.get("is_reference") else "",
            "" if one.get("agrees", True) else "differs from the reference",
            str(one.get("because") or ""),
        ]
        words = one.get("words") or _plain(one.get("candidate"))
        rows.append(
            [
                tag("b", words) if one.get("is_chosen") else words,
                meter(speed / best, f"{speed:,.0f}") if _is_number(speed) and best else "",
                human_bytes(one["peak_bytes"]) if _is_number(one.get("peak_bytes")) else "",
                "; ".join(filter(None, said)),
            ]
        )
    head = ["candidate", unit.replace("_", " ") or "speed", "peak memory", ""]
    return join(tag("h3", "Timed on this machine, with this model and data"), table(head, rows))


def _proof(proof: object) -> Html | None:
    if not isinstance(proof, dict) or not proof.get("state"):
        return None
    because = f": {proof['because']}" if proof.get("because") else ""
    return tag("p", f"Proof: {proof['state']}{because}.", class_="meta")


def _machine(facts: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    if facts.get("os"):
        yield "system", " ".join(filter(None, (str(facts["os"]), str(facts.get("os_version") or ""))))
    if facts.get("chip"):
        yield "processor", str(facts["chip"])
    if facts.get("cpu_count"):
        yield "usable cores", str(facts["cpu_count"])
    if _is_number(facts.get("memory_bytes")):
        yield "memory", human_bytes(facts["memory_bytes"])
    for gpu in facts.get("gpus") or ():
        if isinstance(gpu, dict):
            size = f", {human_bytes(gpu['memory_bytes'])}" if _is_number(gpu.get("memory_bytes")) else ""
            yield "GPU", f"{gpu.get('name', '')}{size}"
    if facts.get("python_version"):
        yield "Python", str(facts["python_version"])
    versions = facts.get("distributions") or {}
    for name in ("torch", "transformers", "tokenizers", "safetensors", "peft"):
        if isinstance(versions, dict) and versions.get(name):
            yield name, str(versions[name])
    for disk in facts.get("disks") or ():
        if isinstance(disk, dict) and disk.get("role") == "output" and _is_number(disk.get("free_bytes")):
            yield "free disk", human_bytes(disk["free_bytes"])
    if facts.get("in_container"):
        yield "container", "yes"


def _plain(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:g}"
    return str(value) if isinstance(value, str | int) else json.dumps(value, ensure_ascii=False)


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool)
