"""Compares accuracy: the engine and its peers on the same rows, seeds and settings, evaluated on the test split.

`accuracy.py CASES.json` trains each case with each seed by the engine (a real attempt) and by the peer: HF Trainer for
classify and causal (with peft for LoRA), the model and loss of sentence-transformers for two-tower. Every run is a
separate process; --jobs of them run at a time, because nothing is timed. A case:

    {"name": "pubmed", "task": "classify", "model": FOLDER, "prepared": FOLDER, "seeds": [1, 2, 3],
     "settings": {"epochs": 2, "batch_size": 16, "lr": 5e-5, ...}, "variants": {"mined": {"options": ...}}}

A variant is trained by the engine only. The same settings go to both; both measure with the engine's own metrics, and
the weights of the last step count.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

OURS = "holdfast"
PEERS = {"classify": "HF Trainer", "causal": "HF Trainer", "two-tower": "sentence-transformers"}
SHOWN = ("accuracy", "macro_f1", "micro_f1", "loss", "perplexity", "ndcg@10", "mrr@10", "recall@10")


@dataclass(frozen=True, eq=False)
class Job:
    """One training run, or an evaluation of the untrained model."""

    case: dict[str, Any]
    who: str
    seed: int

    @property
    def settings(self) -> dict[str, Any]:
        """The settings of the engine; the peer uses those it supports."""
        shared = {"schedule": "linear", "warmup_ratio": 0.06, "keep": "last", "eval_steps": 10**9, "save_seconds": 1e9}
        variant = self.case.get("variants", {}).get(self.who, {})
        places = {name: str(Path(self.case[name]).absolute()) for name in ("model", "prepared")}
        return shared | {"task": self.case["task"], "seed": self.seed, **places} | self.case["settings"] | variant


def main() -> None:
    """Train everything, print one table, add lines to the ledger."""
    options = _options()
    cases = [case for case in json.loads(options.cases.read_text()) if not options.only or case["name"] in options.only]
    jobs = [Job(case, who, seed) for case in cases for who, seed in _subjects(case)]
    more = {"device": options.device, "precision": options.precision, "threads": options.threads}
    with ThreadPoolExecutor(options.jobs) as pool:
        tried = zip(jobs, pool.map(lambda job: run(job, more), jobs), strict=True)
        found = {job: metrics for job, metrics in tried if metrics}
    rows = [row for case in cases for row in summary(case, found)]
    for row in rows:
        print("{:<16} {:<24} {:<12} {:>8.4f}  +-{:.4f}  {} seeds".format(*row))
    write_lines(rows, options.device)


def run(job: Job, more: dict[str, Any]) -> dict[str, float] | None:
    """Train in separate processes; return the metrics on the test split, None if a process failed."""
    try:
        metrics = train_and_measure(job, more)
    except RuntimeError as error:
        print(f"{job.case['name']} {job.who} seed {job.seed} failed: {error}", flush=True)
        return None
    print(f"{job.case['name']} {job.who} seed {job.seed}: {_short(metrics)}", flush=True)
    return metrics


def train_and_measure(job: Job, more: dict[str, Any]) -> dict[str, float]:
    """One run in a temporary folder."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        attempt = folder / "attempts" / "01"
        attempt.mkdir(parents=True)
        settings = job.settings | more | {"run": str(folder)}
        (attempt / "settings.json").write_text(json.dumps(settings))
        if job.who == PEERS[job.case["task"]]:
            _call("accuracy_peers.py", attempt)
        elif job.who != "as it came":
            _call("-m", "holdfast.engine", attempt)
        if job.case["task"] == "two-tower":  # both by the same search over the whole corpus, in fp32
            trained = settings["model"] if job.who == "as it came" else str(folder / "model")
            wanted = {"search": [settings["prepared"], *job.case.get("also", [])], "model": trained}
            (attempt / "search.json").write_text(json.dumps(wanted))
            _call("accuracy_peers.py", attempt)
        metrics: dict[str, float] = json.loads((folder / "metrics.json").read_text())["test"]
        return metrics


def summary(case: dict[str, Any], found: dict[Job, dict[str, float]]) -> list[tuple[str, str, str, float, float, int]]:
    """Mean and standard deviation over the seeds, for each subject and metric."""
    rows = []
    for who in dict.fromkeys(who for who, _ in _subjects(case)):
        runs = [metrics for job, metrics in found.items() if job.case is case and job.who == who]
        for name in (name for name in (runs[0] if runs else {}) if name.split(" ")[-1] in SHOWN):
            values = [metrics[name] for metrics in runs]
            spread = statistics.stdev(values) if len(values) > 1 else 0.0
            rows.append((case["name"], who, name, statistics.mean(values), spread, len(values)))
    return rows


def write_lines(rows: list[tuple[str, str, str, float, float, int]], device: str) -> None:
    """Add the means to the ledger."""
    from figures import Figure, write_figures

    for name, who, metric, mean, _, seeds in rows:
        write_figures(f"accuracy {name}", [Figure(who, f"mean test {metric}", mean, seeds)], device)


def _subjects(case: dict[str, Any]) -> list[tuple[str, int]]:
    whos = [OURS, PEERS[case["task"]], *case.get("variants", {})]
    before = [("as it came", 0)] if case["task"] == "two-tower" else []
    return [*before, *((who, seed) for who in whos for seed in case["seeds"])]


def _call(*command: object) -> None:
    here = Path(__file__).parent
    parts = [str(here / part) if str(part).endswith(".py") else str(part) for part in command]
    env = os.environ | {"PYTHONPATH": f"{here.parent}:{here}", "TOKENIZERS_PARALLELISM": "false"}
    done = subprocess.run([sys.executable, *parts], env=env, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{parts} ended with {done.returncode}: {done.stderr[-3000:]}")


def _short(metrics: dict[str, float]) -> str:
    return ", ".join(f"{name} {value:.4f}" for name, value in metrics.items() if name.split(" ")[-1] in SHOWN)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", type=Path)
    parser.add_argument("--only", nargs="+", help="names of cases")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--precision", default="fp32")
    parser.add_argument("--threads", type=int)
    return parser.parse_args()


if __name__ == "__main__":
    main()
