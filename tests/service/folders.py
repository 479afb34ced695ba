"""Run folders in every state that a page may meet, written by hand: small, and strange where it matters."""

import json
import time
from datetime import timedelta
from pathlib import Path

from django.utils import timezone

from holdfast.service.jobs.models import Job

EVIL = "</pre><script>alert('x')</script> & \"quoted\""
STATES = ("missing", "half-born", "planned", "running", "finished", "failed", "stopped", "corrupt", "nonsense")
_ROW_STATE = {"missing": "finished", "half-born": "running", "corrupt": "finished", "nonsense": "failed"}


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
    _json(
        folder / "plan.json",
        {
            "task": "classify",
            "choices": {"lr": {"value": 0.0001, "because": EVIL}, "epochs": {"value": 2, "because": "as asked"}},
            "forecast": {"seconds": 214.0, "peak_bytes": 1_281_532_805, "because": "measured over 9 steps"},
            "memory": {"free_bytes": 22_000_000_000},
            "proof": {"state": "done", "because": "killed and resumed, bit-exact"},
        },
    )
    finding = {"severity": "warning", "title": "little memory", "seen": EVIL, "remedies": [{"title": "buy more"}]}
    _json(folder / "doctor.json", {"findings": [finding]})
    now = time.time()
    _lines(
        folder / "events.jsonl",
        {"event": "phase", "time": now - 60, "phase": "survey"},
        {"event": "surveyed", "time": now - 59, "task": "classify", "rows": 200, "splits": {"train": 160, "test": 40}},
        {"event": "planned", "time": now - 50},
    )
    if state == "planned":
        return
    _attempt(folder, state, now, steps)
    if state == "finished":
        metrics = {"accuracy": 0.9, "macro_f1": 0.88, "loss": 0.3}
        _json(folder / "metrics.json", {"validation": metrics, "test": metrics, "step": steps, "steps": steps})
        _json(folder / "misjudged.json", {"split": "test", "examples": [{"text": EVIL, "wanted": ["a"], "row": 3}]})
        _json(folder / "result.json", {"state": "finished", "sentence": f"finished, {steps} steps", "seconds": 61.0})
        (folder / "report.html").write_text("<!doctype html><title>report</title><style>p{color:red}</style>")
        (folder / "model").mkdir()
        (folder / "model" / "model.safetensors").write_bytes(b"weights" * 1000)
        _json(folder / "model" / "config.json", {"model_type": "bert"})
    elif state == "failed":
        _json(folder / "result.json", {"state": "failed", "sentence": f"failed: {EVIL}", "slug": "host-oom"})
    elif state == "corrupt":
        (folder / "result.json").write_text('{"state": "fini')
        (folder / "attempts" / "01" / "events.jsonl").write_bytes(b'\xff\xfe{"event": "step"\n{"event": "step"}\n[]\n')
        (folder / "attempts" / "notanumber").mkdir()
    elif state == "nonsense":
        for name in ("plan", "metrics", "doctor", "dataset", "misjudged", "machine", "result"):
            odd = dict.fromkeys(("choices", "forecast", "proof", "findings", "validation", "examples", "splits"), 3)
            _json(folder / f"{name}.json", {**odd, "gpus": 7, "labels": "x", "metrics": [1], "state": 5, "sentence": 1})
        for name in ("diagnosis", "decision", "outcome", "rung", "evidence"):
            odd = dict.fromkeys(("because", "remedies", "sources", "title", "sentence", "rung", "outcome"), 3)
            _json(folder / "attempts" / "01" / f"{name}.json", odd)


def _attempt(folder: Path, state: str, now: float, steps: int) -> None:
    attempt = folder / "attempts" / "01"
    (attempt / "stacks").mkdir(parents=True)
    _lines(
        attempt / "events.jsonl",
        {"event": "training", "time": now - 40, "first_step": 0, "steps": steps},
        *({"event": "step", "time": now - 40 + at / 10, "step": at, "loss": 2 - at / steps} for at in range(steps)),
        {"event": "evaluated", "time": now - 5, "step": steps, "metrics": {"accuracy": 0.9, "loss": 0.3}},
    )
    _lines(
        attempt / "samples.jsonl",
        *(
            {
                "event": "sample",
                "time": now - 40 + at * 5,
                "step": at,
                "resident_bytes": 10**8 * (at + 1),
                "words": EVIL,
            }
            for at in range(6)
        ),
    )
    (attempt / "output.log").write_text(
        f"\x1b[1mloading\x1b[0m\nHF_TOKEN=hf_abcdefghijklmnopqrstuvwxyz123456\n{EVIL}\n"
    )
    if state in ("finished", "stopped"):
        _json(attempt / "outcome.json", {"outcome": state, "started": now - 41, "seconds": 40.0, "step_reached": steps})
    if state == "failed":
        (attempt / "stacks" / "python-7.txt").write_text(f'  File "x.py", line 3 in {EVIL}\n')
        sentence = "killed by the kernel for memory"
        outcome = {"outcome": "died", "sentence": sentence, "started": now - 41, "seconds": 40.0}
        _json(attempt / "outcome.json", {**outcome, "noticed_after_seconds": 0.4})
        _json(
            attempt / "diagnosis.json",
            {
                "slug": "host-oom",
                "title": "the main memory ran out",
                "confidence": "proven",
                "because": [{"source": "kernel", "line": 1, "text": f"oom_kill +1 {EVIL}"}],
                "remedies": [{"title": "fewer at once", "cost": "slower"}],
                "sources": ["pytorch/pytorch#1"],
            },
        )
        _json(attempt / "decision.json", {"action": "stop", "because": "nothing is left to try"})


def _json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value), encoding="utf-8")


def _lines(path: Path, *values: object) -> None:
    path.write_text("".join(json.dumps(value) + "\n" for value in values), encoding="utf-8")


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
