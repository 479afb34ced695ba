"""Measures the outcome of the same faults for a training alone, in a shell loop, and with Holdfast.

The lab's files (tests/lab/faults) cause each fault in three runs of the same training:

    bare         the command alone
    shell loop   the usual workaround: `until COMMAND; do sleep 1; done` around a script that saves every ten steps and
                 resumes from its newest checkpoint (trainer.train(resume_from_checkpoint=...), ckpt_path="last"). Its
                 first round is the bare run. `torchrun --max-restarts` does the same; neither inspects a process that
                 still exists
    holdfast     `holdfast run -- COMMAND` with the unmodified script; Holdfast's engine under its supervisor

A run has finished if it exited with code 0 and left a model; its weights are compared with those of an undisturbed run.
It hangs if it does not compute for a minute, or computes many times as long as it needs. A fault that the bare command
survives unharmed is in the table but does not count. HOLDFAST_LAB_PYTHON names an interpreter with lightning and
sentence-transformers; missing libraries are skipped. `--results FILE` stores the results, and cells in it are not run
again.
"""

import argparse
import datetime
import json
import statistics
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from perf.bare_subjects import ENGINE, LOADER, SCRIPTS, Seen, Subject, make_subjects
from perf.figures import Figure, commit_and_machine, write_figures

FAULTS = (  # the most informative first, in case the run is interrupted
    *((name, "step") for name in ("SIGKILL", "SIGSTOP", LOADER, "nan", "SIGSEGV", "deadlock")),
    *((name, phase) for phase in ("import", "first step") for name in ("SIGKILL", "SIGSTOP")),
    *((name, "step") for name in ("SIGABRT", "livelock")),
)
WAYS = ("bare", "shell loop", "holdfast")


def main() -> None:
    """Run all missing cells, print the table, write the page and the ledger."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, help="JSON lines; results are stored here and reused")
    parser.add_argument(
        "--minutes",
        type=float,
        default=float("inf"),
        help="start no cell after this time; 0 only writes existing results",
    )
    parser.add_argument("--subjects", default=",".join((ENGINE, *SCRIPTS)), help="divided by commas")
    parser.add_argument("--at-once", type=int, default=3, help="cells at a time; most of them wait")
    parser.add_argument("--card", action="store_true", help="on a CUDA card, which the scripts use automatically")
    parser.add_argument("--page", type=Path, help="write the table here, as a page of the documentation")
    parser.add_argument("--no-ledger", action="store_true")
    options = parser.parse_args()
    device = "cuda" if options.card else "cpu"
    with tempfile.TemporaryDirectory() as name:
        results = Results(options.results or Path(name) / "results.jsonl")
        subjects = make_subjects(Path(name), options.subjects.split(","), device) if options.minutes else []
        deadline = time.monotonic() + 60 * options.minutes
        cells = [(subject, fault) for fault in FAULTS for subject in subjects if not results.has(subject.name, *fault)]

        def measure(cell: tuple["Subject", tuple[str, str]]) -> None:
            if time.monotonic() < deadline:
                results.add(cell[0].measure(*cell[1]))

        with ThreadPoolExecutor(options.at_once) as pool:
            list(pool.map(measure, cells))
    print("\n".join(table(results.seen)))
    if options.page:
        options.page.write_text(page(results.seen, options.page.name, device), encoding="utf-8")
    if not options.no_ledger:
        write_figures("bare_cuda" if options.card else "bare", summary(results.seen), device)


class Results:
    """The results, also in a file."""

    def __init__(self, path: Path):
        self._path, self._lock = path, threading.Lock()
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        self.seen = [Seen(**json.loads(line)) for line in lines]

    def has(self, subject: str, fault: str, phase: str) -> bool:
        """Whether this cell was measured."""
        return any((one.subject, one.fault, one.phase) == (subject, fault, phase) for one in self.seen)

    def add(self, seen: list[Seen]) -> None:
        """Store the result of a cell."""
        with self._lock, self._path.open("a", encoding="utf-8") as file:
            for one in seen:
                self.seen.append(one)
                print(json.dumps(asdict(one)), file=file)
                print(f"{one.subject:<22} {one.fault:<16} {one.phase:<11} {one.way:<11} {_words(one)}", flush=True)


def table(seen: list[Seen]) -> list[str]:
    """One line for each fault and training, as Markdown, and the rates."""
    lines = ["| fault | phase | training | " + " | ".join(WAYS) + " |", "| --- " * (3 + len(WAYS)) + "|"]
    cells = {(one.fault, one.phase, one.subject, one.way): one for one in seen}
    for fault, phase, subject in dict.fromkeys(key[:3] for key in cells):
        told = [_words(cells[fault, phase, subject, way]) for way in WAYS]
        lines.append(f"| {fault} | {phase} | {subject} | {' | '.join(told)} |")
    return lines


def summary(seen: list[Seen]) -> list[Figure]:
    """The rates of each way, and how soon Holdfast noticed what hung."""
    figures = []
    harmless = {(one.subject, one.fault, one.phase) for one in seen if one.way == "bare" and one.same}
    seen = [one for one in seen if (one.subject, one.fault, one.phase) not in harmless]
    for what in ("finished", "same weights"):
        for way in reversed(WAYS):
            truths = [one.finished if what == "finished" else one.same for one in seen if one.way == way]
            figures.append(Figure(f"{way}: {what}", "% of n", 100 * sum(truths) / len(truths), len(truths)))
    noticed = sorted(one.noticed_after_seconds for one in seen if one.noticed_after_seconds is not None)
    if noticed:
        figures.append(
            Figure("holdfast: hangs noticed after, median", "seconds", statistics.median(noticed), len(noticed))
        )
        figures.append(Figure("holdfast: hangs noticed after, worst", "seconds", noticed[-1], len(noticed)))
    return figures


def page(seen: list[Seen], name: str, device: str) -> str:
    """The table as a page of the documentation."""
    commit, machine = commit_and_machine(device)
    is_on_card = device != "cpu"
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    rates = [f"- {one.subject}: {one.value:.3g} {one.unit}, n = {one.rounds}" for one in summary(seen)]
    head = (
        f"# The same faults without Holdfast{', on a CUDA card' if is_on_card else ''}",
        "",
        f"Written by `python perf/bare.py {'--card ' if is_on_card else ''}--page docs/{name}`",
        f"on {today}, commit {commit}, {machine}.",
        "*Bare* is the command alone. *Shell loop* restarts a script that saves every ten steps until it succeeds,",
        "from its newest checkpoint; it sees only exit codes. *Holdfast* runs the script unmodified, without any",
        "code for checkpoints. All run the same tiny training, and the same files cause the faults.",
        "A fault that the bare command survived unharmed does not count in the rates.",
        "",
        *rates,
        "",
    )
    return "\n".join([*head, *table(seen), ""])


def _words(one: Seen) -> str:
    if not one.finished:
        return f"no ({one.how})"
    noticed = "" if one.noticed_after_seconds is None else f", noticed after {one.noticed_after_seconds:.1f} s"
    return ("same weights" if one.same else "finished, other weights") + noticed


if __name__ == "__main__":
    main()
