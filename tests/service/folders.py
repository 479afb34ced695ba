"""Run folders in every state that a page may meet, as a run leaves them: small, and strange where it matters."""

import json
import time
from datetime import timedelta
from pathlib import Path

from django.utils import timezone

from holdfast.core import events as ev
from holdfast.core.event_log import EventLog
from holdfast.core.evidence import Decision, Diagnosis, Passage
from holdfast.core.facts import ModelFacts
from holdfast.core.plan import Choice, Reason, Remedy
from holdfast.core.records import (
    Forecast,
    MemoryEstimate,
    Mistakes,
    Outcome,
    Proof,
    Result,
    RunPlan,
    WrongLabels,
    write_record,
)
from holdfast.core.settings import EngineSettings
from holdfast.service.jobs.models import Job

EVIL = "</pre><script>alert('x')</script> & \"quoted\""
STATES = ("missing", "half-born", "planned", "running", "finished", "failed", "stopped", "corrupt", "nonsense")
_ROW_STATE = {"missing": "finished", "half-born": "running", "corrupt": "finished", "nonsense": "failed"}
FINDING = ev.FindingReported(slug="host-oom", severity="warning", seen=EVIL, title="little memory")


def write_folder(folder: Path, state: str, *, steps: int = 40) -> None:
    """Leave a run folder as a run in that state leaves it."""
    if state == "missing":
        return
    folder.mkdir(parents=True)
    if state == "half-born":
        (folder / "request.json").write_text("")
        return
    _json(folder / "request.json", {"kind": "train", "data": "/d/words.csv", "task": "classify"})
    _json(folder / "dataset.json", {"task": "classify", "rows": 200, "labels": {EVIL: 100, "b": 100}})
    write_plan(folder)
    write_record(folder, Proof(state="done"))
    measured = Forecast(basis="measured steps", seconds=214.0, peak_bytes=1_281_532_805, steps=9, step_seconds=0.5)
    write_record(folder, measured)
    now = time.time()
    log(
        folder / "events.jsonl",
        ev.StageStarted(time=now - 60, stage="detect"),
        ev.Surveyed(time=now - 59, task="classify", form="one label", rows=200, splits={"train": 160, "test": 40}),
        FINDING,
    )
    if state == "planned":
        return
    _attempt(folder, state, now, steps)
    if state == "finished":
        metrics = {"accuracy": 0.9, "macro_f1": 0.88, "loss": 0.3}
        _json(folder / "metrics.json", {"validation": metrics, "test": metrics, "step": steps, "steps": steps})
        write_record(folder, Mistakes(split="test", labels=(WrongLabels(text=EVIL, expected=("a",), row=3),)))
        write_record(folder, Result(state="finished", exit_code=0, attempts=1, seconds=61.0))
        (folder / "report.html").write_text("<!doctype html><title>report</title><style>p{color:red}</style>")
        (folder / "model").mkdir()
        (folder / "model" / "model.safetensors").write_bytes(b"weights" * 1000)
        _json(folder / "model" / "config.json", {"model_type": "bert"})
    elif state == "stopped":
        write_record(folder, Result(state="stopped", exit_code=143, attempts=1, seconds=61.0))
    elif state == "failed":
        failed = Result(state="failed", exit_code=4, attempts=1, seconds=61.0, slug="host-oom")
        write_record(folder, failed)
    elif state == "corrupt":
        (folder / "result.json").write_text('{"state": "fini')
        (folder / "attempts" / "01" / "events.jsonl").write_bytes(
            b'\xff\xfe{"event": "step_done"\n{"event": "step_done"}\n[]\n'
        )
        (folder / "attempts" / "notanumber").mkdir()
    elif state == "nonsense":
        for name in ("plan", "proof", "forecast", "metrics", "doctor", "dataset", "misjudged", "machine", "result"):
            odd = dict.fromkeys(("choices", "forecast", "proof", "findings", "validation", "examples", "splits"), 3)
            _json(folder / f"{name}.json", {**odd, "gpus": 7, "labels": "x", "metrics": [1], "state": 5, "sentence": 1})
        for name in ("diagnosis", "decision", "outcome", "start", "evidence"):
            odd = dict.fromkeys(("because", "remedies", "sources", "title", "sentence", "fallback", "outcome"), 3)
            _json(folder / "attempts" / "01" / f"{name}.json", odd)


def write_plan(folder: Path, *, max_steps: int | None = None) -> None:
    """The plan of a run, with a reason that is mark-up."""
    choices = {"lr": Choice(0.0001, EVIL), "epochs": Choice(2, "as requested")}
    settings = EngineSettings(
        task="classify", model="/m", prepared="/p", run=str(folder), epochs=2, max_steps=max_steps, lr=0.0001
    )
    memory = MemoryEstimate(need_bytes=10**9, libraries_bytes=10**8, free_bytes=22_000_000_000)
    model = ModelFacts(name="minilm", folder="/m")
    write_record(folder, RunPlan(task="classify", model=model, choices=choices, settings=settings, memory=memory))


def _attempt(folder: Path, state: str, now: float, steps: int) -> None:
    attempt = folder / "attempts" / "01"
    (attempt / "stacks").mkdir(parents=True)
    log(
        attempt / "events.jsonl",
        ev.TrainingStarted(time=now - 40, first_step=0, steps=steps),
        *(ev.StepDone(time=now - 40 + at / 10, step=at, loss=2 - at / steps) for at in range(steps)),
        ev.Evaluated(time=now - 5, step=steps, metrics={"accuracy": 0.9, "loss": 0.3}),
    )
    log(
        attempt / "samples.jsonl",
        *(
            ev.TreeSampled(time=now - 40 + at * 5, phase="step", step=at, resident_bytes=10**8 * (at + 1))
            for at in range(6)
        ),
    )
    (attempt / "output.log").write_text(
        f"\x1b[1mloading\x1b[0m\nHF_TOKEN=hf_abcdefghijklmnopqrstuvwxyz123456\n{EVIL}\n"
    )
    if state in ("finished", "stopped"):
        ended = Outcome(number=1, outcome=state, started=now - 41, seconds=40.0, step_reached=steps, steps=steps)
        write_record(attempt, ended)
    if state == "failed":
        (attempt / "stacks" / "python-7.txt").write_text(f'  File "x.py", line 3 in {EVIL}\n')
        ended = Outcome(
            number=1, outcome="died", diagnosis="host-oom", started=now - 41, seconds=40.0, noticed_after_seconds=0.4
        )
        write_record(attempt, ended)
        diagnosis = Diagnosis(
            slug="host-oom",
            title="the main memory ran out",
            confidence="proven",
            because=(Passage("log", 1, f"oom_kill +1 {EVIL}"),),
            remedies=(Remedy("fewer at once", cost="slower"),),
            sources=("pytorch/pytorch#1",),
        )
        write_record(attempt, diagnosis)
        write_record(attempt, Decision(action="stop", reason=Reason(kind="nothing_left")))


def log(path: Path, *events: ev.Event) -> None:
    """Append events to a file."""
    written = EventLog(path)
    for event in events:
        written.write(event)
    written.close()


def _json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value), encoding="utf-8")


def make_job(owner, folder="", **fields):
    """A row, with the folder that a run in that state leaves."""
    row = {"state": _ROW_STATE.get(folder, folder) or "queued", "name": "first run", **fields}
    if row["state"] not in ("queued",):
        row.setdefault("started", timezone.now() - timedelta(minutes=2))
    if row["state"] in ("finished", "failed", "stopped", "planned"):
        row.setdefault("ended", timezone.now())
    job = Job.objects.create(owner=owner, request={"model": "minilm"}, **row)
    if folder:
        job.folder.parent.mkdir(parents=True, exist_ok=True)
        write_folder(job.folder, folder)
    return job
