"""Forecasts a run from its first steps, once, and checks that a killed run repeats its steps bit for bit.

Listens to the attempts as they go. Leaves: "forecast" and "proof" in plan.json.
"""

import contextlib
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from holdfast.core.artifacts import read_artifact, write_artifact
from holdfast.core.facts import ModelFacts
from holdfast.core.old_events import read_events
from holdfast.core.runfolder import EVENTS, PLAN, SETTINGS, attempt_folder
from holdfast.core.text import human_bytes, human_seconds
from holdfast.planning.memory_model import reading_bytes
from holdfast.planning.proving import Work, answer_seconds, forecast_seconds
from holdfast.runs.walk import OnEvent

_FEWEST_STEPS = 8
_FEWEST_FREE_STEPS = 4  # steps beside which nothing was saved
_LEAST_SECONDS = 5.0
_SHARE = 0.03  # of the steps, after which a forecast is made
_ROOM = 1.03  # memory grows a little with the longest texts that are still to come
_NEW_SHARE = 0.8  # of what an evaluation takes, that training had not taken before


class Forecasting:
    """Passes a run's events on, and adds what it finds out."""

    def __init__(self, run: Path, work: Work, on_event: OnEvent):
        self._run, self._work, self._on_event = run, work, on_event
        self._plan = read_artifact(run / PLAN)
        # One without its time was made for a run that waited to be started: it is made again.
        self._has_forecast = bool((self._plan.get("forecast") or {}).get("made_at"))
        self._repeated = _to_repeat(run, self._plan)
        self._attempt, self._peak, self._looked_at = 0, 0, 0.0

    def __call__(self, event: str, details: Mapping[str, object]) -> None:
        """Hear one event."""
        self._on_event(event, details)
        if event == "attempt":
            self._attempt = int(str(details["number"]))
            if self._attempt == 1:
                self.forecast_from_proof()
        if event != "progress" or (self._has_forecast and not self._repeated):
            return
        self._peak = max(self._peak, int(str(details.get("resident_bytes") or 0)))
        now = time.monotonic()
        if now - self._looked_at >= 0.5:
            self._looked_at = now
            self._look()

    def _look(self) -> None:
        events = list(read_events(attempt_folder(self._run, self._attempt) / EVENTS))
        steps = [event for event in events if event["event"] == "step"]
        if self._repeated and steps:
            self._compare(steps)
        if not self._has_forecast and steps:
            self._forecast(events, steps)

    def _forecast(self, events: list[dict[str, Any]], steps: list[dict[str, Any]]) -> None:
        """From the steps of this attempt, once there are enough of them and a save has taken its memory."""
        seconds = _step_seconds(events)
        done = int(steps[-1]["step"]) + 1
        enough = len(steps) > max(_FEWEST_STEPS, _SHARE * self._work.steps)
        if enough and seconds is not None and len(steps) * seconds >= _LEAST_SECONDS and done < self._work.steps:
            self._tell(events, seconds, done, made_at=time.time())

    def forecast_from_proof(self, *, is_waiting: bool = False) -> None:
        """From the first steps, which the proof has timed: then there is a forecast before the run begins.

        A run that waits to be started keeps it without a time: what the forecast is measured against has not begun.
        """
        proof = (self._plan.get("proof") or {}).get("first_steps") or {}
        folder = self._run / "proof" / "first-steps"
        events = list(read_events(folder / EVENTS))
        seconds = _step_seconds(events)
        if proof.get("state") == "killed" and seconds is not None and not self._has_forecast:
            begun = next((float(str(event["time"])) for event in events if event["event"] == "training"), 0.0)
            start = max(0.0, begun - (folder / SETTINGS).stat().st_mtime)
            made_at = None if is_waiting else time.time()
            self._tell(events, seconds, int(proof["saved_step"]), start, made_at=made_at)

    def _tell(
        self,
        events: list[dict[str, Any]],
        seconds: float,
        done: int,
        start_seconds: float = 0.0,
        *,
        made_at: float | None,
    ) -> None:
        self._has_forecast = True
        settings = self._plan["settings"]
        processes = int(settings.get("processes") or 1)
        cores = cores_used(events)
        model, device = ModelFacts(**self._plan["model"]), str(settings["device"])
        share = cores / (processes * int(settings.get("threads") or 1)) if cores else 1.0
        left = start_seconds + forecast_seconds(self._work, done, seconds, answer_seconds(model, device, share))
        proof = self._plan.get("proof") or {}
        peaks = [int((proof.get(part) or {}).get("peak_bytes") or 0) for part in ("longest", "first_steps")]
        is_on_card = device.startswith("cuda")
        more = 0 if _has_evaluated(events) else self._evaluation_bytes()
        peak = int(max(self._peak, *peaks) * _ROOM) + (0 if is_on_card else processes * more)
        card = max((int(event["card_bytes"]) for event in events if event.get("card_bytes")), default=0)
        card_peak = int(card * _ROOM) + more if is_on_card and card else None
        assumed = (
            f"if nothing fails and other programs leave it {cores_words(cores)}, as now"
            if cores and not is_on_card
            else "if nothing fails"
        )
        count = sum(event["event"] == "step" for event in events)
        because = f"measured over {count} steps of {human_seconds(seconds)}; {assumed}"
        forecast = {
            "seconds": round(left, 1),
            "peak_bytes": peak or None,
            "card_peak_bytes": card_peak,
            "because": because,
            "made_at": made_at,
            "cores": cores,
        }
        self._write("forecast", forecast)
        memory = f", up to {human_bytes(peak)} of memory" if peak else ""
        memory += f" and {human_bytes(card_peak)} of the card's" if card_peak else ""
        self._on_event("forecast", {**forecast, "words": f"{human_seconds(left)} to go{memory} ({because})"})

    def _evaluation_bytes(self) -> int:
        """What the first evaluation will add."""
        settings = self._plan["settings"]
        tokens = min(int(settings["micro_tokens"]), self._work.largest_read_tokens)
        model = ModelFacts(**self._plan["model"])
        return int(_NEW_SHARE * reading_bytes(model, tokens, str(settings["precision"])))

    def _compare(self, steps: list[dict[str, Any]]) -> None:
        """The steps that the killed process had done after its last save must come again, bit for bit."""
        found = {int(event["step"]): (event["loss"], event["norm"]) for event in steps}
        wanted = self._repeated
        if not wanted.keys() <= found.keys() and max(found) <= max(wanted):
            return
        self._repeated = {}
        if self._has_other_processes():  # sums in another order: the same within rounding, not bit for bit
            return
        common = sorted(wanted.keys() & found.keys())
        other = [step for step in common if wanted[step] != found[step]]
        if not common:
            return
        if other:
            step = other[0]
            words = f"after a kill step {step + 1} gave another loss: {found[step][0]} in place of {wanted[step][0]}"
        else:
            words = f"killed without warning and resumed: {len(common)} steps came again bit for bit"
        proof = {
            **(self._plan.get("proof") or {}),
            "resume": {"is_exact": not other, "steps": len(common), "words": words},
        }
        self._write("proof", proof)
        self._on_event("proof", {"state": "failed" if other else "done", "words": words})

    def _has_other_processes(self) -> bool:
        proven = read_artifact(self._run / "proof" / "first-steps" / SETTINGS)
        trained = read_artifact(attempt_folder(self._run, self._attempt) / SETTINGS)
        return proven.get("processes") != trained.get("processes")

    def _write(self, name: str, value: Mapping[str, object]) -> None:
        self._plan[name] = value
        with contextlib.suppress(OSError):  # a disk that is full must not end what is forecast
            write_artifact(self._run, PLAN, self._plan)


def _to_repeat(run: Path, plan: Mapping[str, Any]) -> dict[int, tuple[Any, Any]]:
    """What the killed first steps gave after the last save."""
    first = (plan.get("proof") or {}).get("first_steps") or {}
    if first.get("state") != "killed" or (plan.get("proof") or {}).get("resume") or any((run / "attempts").glob("*")):
        return {}
    events = read_events(run / "proof" / "first-steps" / EVENTS)
    steps = {int(str(event["step"])): (event["loss"], event["norm"]) for event in events if event["event"] == "step"}
    return {step: gave for step, gave in steps.items() if step >= int(first["saved_step"])}


def cores_used(events: Sequence[Mapping[str, Any]], since: float = 0.0) -> float | None:
    """How many cores all processes of the engine computed with, on average, from its first step after a time on."""
    told = [event for event in events if "cpu_seconds" in event and float(event["time"]) >= since]
    if len(told) < 2:
        return None
    seconds = float(told[-1]["time"]) - float(told[0]["time"])
    used = float(told[-1]["cpu_seconds"]) - float(told[0]["cpu_seconds"])
    return round(used / seconds, 2) if seconds > 0 else None


def cores_words(cores: float) -> str:
    """A number of cores, small ones too: `1.8 cores`, `0.55 of a core`."""
    return f"{cores:.1f} cores" if cores >= 1 else f"{cores:.2f} of a core"


def _has_evaluated(events: list[dict[str, Any]]) -> bool:
    return any(event["event"] == "evaluated" for event in events)


def _step_seconds(events: list[dict[str, Any]]) -> float | None:
    """The mean time of a step; evaluations are counted apart, and saves come more rarely later on."""
    gaps: list[tuple[float, float]] = []  # when each step began and ended
    before = None
    for event in events:
        if event["event"] == "step":
            if before is not None:
                gaps.append((before, float(event["time"])))
            before = float(event["time"])
        elif event["event"] in ("evaluated", "epoch", "training"):
            before = None
    if len(gaps) < _FEWEST_STEPS - 1:
        return None
    gaps = gaps[1:]  # the first is often slower
    saves = [
        (float(e["time"]) - float(e.get("seconds") or 0), float(e["time"])) for e in events if e["event"] == "saved"
    ]
    free = [gap for gap in gaps if not any(gap[0] < end and begun < gap[1] for begun, end in saves)]
    lasted = sorted(end - begun for begun, end in (free if len(free) >= _FEWEST_FREE_STEPS else gaps))
    kept = lasted[: max(1, int(len(lasted) * 0.98))]
    return sum(kept) / len(kept)
