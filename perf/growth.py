"""Measures how the time and memory of data preparation grow with the number of rows.

`holdfast train` is started on larger and larger files, and stopped as soon as the data is prepared: fingerprinted, its
columns found, read, checked, split, tokenized and written. The clock runs while columns are found and while data is
prepared, not while the model and the machine are looked at. Each size has several rounds; the figures are those of the
round with the median time. Memory is that of the whole process tree, with shared pages counted once, sampled ten times
per second; it includes the spare process with torch, which does not depend on the rows. Each row is the first part of
one real sentence of `--texts` and the second part of another, or made of random words.
"""

import argparse
import csv
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

sys.path.insert(0, str(Path(__file__).parents[1]))

from perf.figures import Figure, write_figures

HOLDFAST = str(Path(sys.executable).parent / "holdfast")
SIZES = (1_000, 10_000, 100_000, 1_000_000)
TASKS = ("classify", "causal", "two-tower")
_LOOK_SECONDS = 0.1
_MB = 1_000_000
_SPLICES = {"classify": ("text",), "causal": ("prompt", "completion"), "two-tower": ("query", "passage")}

Sentence = tuple[str, str]  # its label and its words


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of preparing this many rows."""

    rows: int
    file_mb: float
    detect_seconds: float
    prepare_seconds: float
    process_mb: float  # peak of the preparing process
    tree_mb: float  # peak of all processes together

    @property
    def seconds(self) -> float:
        """From the first byte read to the last one written."""
        return self.detect_seconds + self.prepare_seconds


def main() -> None:
    """Prepare each size, print what it took and add it to the ledger."""
    options = _options()
    sentences = read_sentences(options.texts) if options.texts else invented_sentences()
    costs = []
    for rows in options.rows:
        with tempfile.TemporaryDirectory(dir=options.scratch) as name:
            data = Path(name) / f"rows.{options.format}"
            write_rows(data, options.task, rows, sentences)
            rounds = [measure(data, rows, options.task, options.model) for _ in range(options.rounds)]
            costs.append(sorted(rounds, key=lambda cost: cost.seconds)[len(rounds) // 2])
        print(_words(costs[-1]), flush=True)
    if not options.no_ledger:
        write_figures(f"growth {options.task} {options.format}", figures_of(costs, options.rounds))


def measure(data: Path, rows: int, task: str, model: str | None) -> Cost:
    """Start `holdfast train` on a file and end it once the data is prepared."""
    command = [HOLDFAST, "train", str(data), "--task", task, "--out", str(data.parent / "run"), "--json-lines"]
    env = os.environ | {"XDG_CACHE_HOME": str(data.parent / "cache"), "XDG_STATE_HOME": str(data.parent / "state")}
    process = subprocess.Popen(
        [*command, *(("--model", model) if model else ())], stdout=subprocess.PIPE, text=True, env=env
    )
    look = _Look(process.pid)
    try:
        assert process.stdout
        times: dict[str, float] = {}
        for line in process.stdout:
            event = json.loads(line)
            times.setdefault(f"{event['event']} {event.get('stage', '')}".strip(), event["time"])
            if event["event"] == "data_prepared":
                break
        else:
            raise RuntimeError(f"{' '.join(command)} ended with {process.wait()}")
        peak = _own_peak_mb(process.pid)
    finally:
        tree_mb = look.end()
        _end_tree(process)
        for folder in ("run", "cache"):  # the next round starts from nothing
            shutil.rmtree(data.parent / folder, ignore_errors=True)
    return Cost(
        rows=rows,
        file_mb=data.stat().st_size / _MB,
        detect_seconds=times["model_found"] - times["stage_started detect"],
        prepare_seconds=times["data_prepared"] - times["stage_started prepare"],
        process_mb=peak,
        tree_mb=tree_mb,
    )


def read_sentences(path: Path) -> list[Sentence]:
    """The sentences of a CSV with the columns text and label."""
    with path.open(encoding="utf-8", newline="") as file:
        return [(row["label"], row["text"]) for row in csv.DictReader(file)]


def invented_sentences(count: int = 18_000) -> list[Sentence]:
    """Sentences of random words, few of them common, as in real text."""
    draws = random.Random(0)
    words = ["".join(draws.choices("abcdefghilmnoprstu", k=draws.randint(2, 10))) for _ in range(30_000)]
    weights = [1 / (at + 1) for at in range(len(words))]
    return [
        (f"class {at % 5}", " ".join(draws.choices(words, weights, k=max(4, round(draws.lognormvariate(3.1, 0.5))))))
        for at in range(count)
    ]


def write_rows(path: Path, task: str, rows: int, sentences: list[Sentence]) -> None:
    """Write a file with this many rows, always the same ones."""
    names = _SPLICES[task]
    with path.open("w", encoding="utf-8", newline="") as file:
        columns = [*names, *(["label"] if task == "classify" else [])]
        writer = csv.writer(file)
        if path.suffix == ".csv":
            writer.writerow(columns)
        for values in _rows(len(names), rows, sentences):
            row = values if task == "classify" else values[:-1]
            if path.suffix == ".csv":
                writer.writerow(row)
            else:
                file.write(json.dumps(dict(zip(columns, row, strict=True)), ensure_ascii=False) + "\n")


def figures_of(costs: list[Cost], rounds: int) -> list[Figure]:
    """The figures of each size."""
    return [
        Figure(f"{cost.rows:,} rows", unit, value, rounds)
        for cost in costs
        for unit, value in (
            ("seconds", cost.seconds),
            ("ms a row", 1000 * cost.seconds / cost.rows),
            ("MB in the preparing process", cost.process_mb),
            ("MB at the peak", cost.tree_mb),
        )
    ]


class _Look:
    """Samples the memory of a process and its descendants."""

    def __init__(self, pid: int):
        self._pid, self._most, self._end = pid, 0, threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def end(self) -> float:
        """Stop sampling; return the peak in MB."""
        self._end.set()
        self._thread.join()
        return self._most / _MB

    def _watch(self) -> None:
        while not self._end.wait(_LOOK_SECONDS):
            self._most = max(self._most, sum(map(_own_bytes, _tree(self._pid))))


def _tree(pid: int) -> list[psutil.Process]:
    try:
        root = psutil.Process(pid)
        return [root, *root.children(recursive=True)]
    except psutil.Error:
        return []


def _own_bytes(process: psutil.Process) -> int:
    """Memory of a process with its share of shared pages; all of it if the system does not report the share."""
    try:
        found = process.memory_full_info()
    except psutil.Error:
        return 0
    return int(getattr(found, "pss", found.rss))


def _own_peak_mb(pid: int) -> float:
    """The peak memory of one process, recorded by the kernel; 0 if it is not available."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0.0
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM")) / _MB


def _end_tree(process: subprocess.Popen) -> None:
    for one in reversed(_tree(process.pid)):
        try:
            one.send_signal(signal.SIGKILL)
        except psutil.NoSuchProcess:
            continue
    process.wait()


def _rows(splices: int, rows: int, sentences: list[Sentence]) -> Iterator[list[str]]:
    draws = random.Random(0)
    cut = [(label, text.split()) for label, text in sentences]
    for _ in range(rows):
        values = []
        for _ in range(splices):
            label, first = draws.choice(cut)
            _, second = draws.choice(cut)
            values.append(" ".join([*first[: (len(first) + 1) // 2], *second[len(second) // 2 :]]))
        yield [*values, label]


def _words(cost: Cost) -> str:
    return (
        f"{cost.rows:>9,} rows, {cost.file_mb:7.1f} MB: detect {cost.detect_seconds:6.1f} s, prepare "
        f"{cost.prepare_seconds:6.1f} s, {1000 * cost.seconds / cost.rows:.3f} ms per row; peak {cost.process_mb:5.0f} "
        f"MB in the process, {cost.tree_mb:5.0f} MB in total"
    )


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("task", choices=TASKS)
    parser.add_argument("--rows", type=int, nargs="+", default=SIZES)
    parser.add_argument("--format", choices=("csv", "jsonl"), default="csv")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--model", help="a folder or a name, as for `holdfast train`")
    parser.add_argument("--texts", type=Path, help="a CSV with the columns text and label; default: random words")
    parser.add_argument("--scratch", help="a folder with space for the rows and the prepared data")
    parser.add_argument("--no-ledger", action="store_true", help="do not write to the ledger")
    return parser.parse_args()


if __name__ == "__main__":
    main()
