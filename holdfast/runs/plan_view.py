"""The plan of a run with its proof and forecast as one JSON object, for the API."""

from pathlib import Path
from typing import Any

import msgspec

from holdfast.core.records import Forecast, Proof, ResumeCheck, RunPlan, read_record
from holdfast.planning.train_plan import proven_choices, proven_settings
from holdfast.runs.proof_wording import candidate_verdict, forecast_basis, proof_reason


def plan_view(run: Path) -> dict[str, Any]:
    """Every setting with its reason, the proof, the timings and the forecast; empty without a plan."""
    plan = read_record(run, RunPlan)
    if plan is None:
        return {}
    proof, forecast = read_record(run, Proof), read_record(run, Forecast)
    check = read_record(run, ResumeCheck)
    candidates = proof.candidates if proof else ()
    plain = {
        "task": plan.task,
        "model": plan.model,
        "choices": proven_choices(plan, proof),
        "settings": proven_settings(plan, proof),
        "memory": plan.memory,
        "measured": [{**msgspec.to_builtins(one), "because": candidate_verdict(one)} for one in candidates],
        "forecast": {**msgspec.to_builtins(forecast), "because": forecast_basis(forecast)} if forecast else {},
        "proof": {**msgspec.to_builtins(proof), "because": proof_reason(proof), "resume": check} if proof else {},
    }
    found: dict[str, Any] = msgspec.to_builtins(plain)
    return found
