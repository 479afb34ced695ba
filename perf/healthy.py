"""Counts false kills: healthy work in every phase, alone and with both cores busy, under Holdfast's supervisor.

Each kind is a script that is slow or quiet in a way that could be mistaken for a hang: importing, loading, a long first
step, compiling, evaluating, saving, resuming, a worker that sleeps, a step that sleeps, a child that works. A run that
does not succeed was killed, and its output is printed. `--rounds 10` gives 220 runs; `--minutes 10` starts none after
that time; `--results FILE` stores the results and continues from them.
"""

import argparse
import collections
import contextlib
import fcntl
import json
import multiprocessing
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import holdfast
from holdfast.core.events import Event, PhaseChanged, Progressed, Quiet
from holdfast.runs.cause_wording import cause_sentence
from holdfast.supervisor.attempt import StopRequest, run_attempt
from holdfast.supervisor.budgets import Budgets
from holdfast.supervisor.child import Launch
from perf.figures import Figure, write_figures

AT_ONCE = 4  # most of them wait


@dataclass(frozen=True, slots=True)
class Seen:
    """One healthy run."""

    kind: str
    is_crowded: bool
    outcome: str
    words: str
    looks: int
    phases: int
    longest_quiet_seconds: float


def main() -> None:
    """Run every kind this often, print the results and add them to the ledger."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=float("inf"))
    parser.add_argument("--kinds", default=",".join(KINDS), help="only these, separated by commas")
    parser.add_argument("--results", type=Path, help="JSON lines; results are stored here and reused")
    parser.add_argument("--no-ledger", action="store_true")
    parser.add_argument("--work", nargs=2, metavar=("KIND", "FOLDER"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        KINDS[options.work[0]](Path(options.work[1]))
        return
    with tempfile.TemporaryDirectory() as name:
        results = Results(options.results or Path(name) / "results.jsonl")
        measure(Path(name), options.kinds.split(","), options.rounds, time.monotonic() + 60 * options.minutes, results)
    seen = results.seen
    show(seen)
    if not options.no_ledger:
        write_figures("healthy", figures_of(seen))
    raise SystemExit(any(one.outcome != "finished" for one in seen))


class Results:
    """The results, also in a file."""

    def __init__(self, path: Path):
        self._path, self._lock = path, threading.Lock()
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        self.seen = [Seen(**json.loads(line)) for line in lines]

    def count(self, kind: str, is_crowded: bool) -> int:
        """How often this kind was run."""
        return sum((one.kind, one.is_crowded) == (kind, is_crowded) for one in self.seen)

    def add(self, one: Seen) -> None:
        """Store the result of a run."""
        with self._lock, self._path.open("a", encoding="utf-8") as file:
            self.seen.append(one)
            print(json.dumps(asdict(one)), file=file)


def measure(folder: Path, kinds: list[str], rounds: int, deadline: float, results: Results) -> None:
    """Run each kind this often, in each round first alone, then with both cores busy."""
    for number in range(1, rounds + 1):
        for is_crowded in (False, True):
            left = [kind for kind in kinds if results.count(kind, is_crowded) < number]
            if left:
                _batch(folder, left, number, is_crowded, deadline, results)
        print(f"round {number}: {len(results.seen)} runs, {killed(results.seen)} false kills", flush=True)
        if time.monotonic() >= deadline:
            break


def _batch(folder: Path, kinds: list[str], number: int, is_crowded: bool, deadline: float, results: Results) -> None:
    def begin(kind: str) -> None:
        place = folder / f"{number}-{is_crowded:d}-{kind.replace(' ', '-')}"
        if time.monotonic() < deadline:
            results.add(run(kind, place, is_crowded))

    with hogs(is_crowded), ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(begin, kinds))


def run(kind: str, attempt: Path, is_crowded: bool) -> Seen:
    """Run one kind under the supervisor."""
    attempt.mkdir()
    told: collections.Counter[str] = collections.Counter()
    quiet = [0.0]

    def hear(event: Event) -> None:
        told[event.name()] += 1
        if isinstance(event, Quiet):
            quiet.append(event.seconds)

    paths = os.pathsep.join((str(Path(holdfast.__file__).parent / "preload"), str(Path.cwd())))
    environment = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "2"}
    command = (sys.executable, __file__, "--work", kind, str(attempt))
    outcome, _ = run_attempt(Launch(command, attempt, environment, attempt), Budgets(), hear, StopRequest())
    words = cause_sentence(outcome.cause) if outcome.cause else outcome.error if outcome.outcome != "finished" else ""
    return Seen(
        kind, is_crowded, outcome.outcome, words, told[Progressed.name()], told[PhaseChanged.name()], max(quiet)
    )


@contextlib.contextmanager
def hogs(are_there: bool) -> Iterator[None]:
    """Keep every core busy."""
    count = (os.cpu_count() or 1) if are_there else 0
    busy = [subprocess.Popen([sys.executable, "-S", "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for process in busy:
            process.kill()
            process.wait()


def killed(seen: list[Seen]) -> int:
    """How many did not end by themselves."""
    return sum(one.outcome != "finished" for one in seen)


def show(seen: list[Seen]) -> None:
    """Print one line for each kind, and what went wrong."""
    print(f"{'kind':<16} {'runs':>5} {'looks':>6} {'phases':>6} {'longest quiet':>14} {'killed':>6}")
    for kind in dict.fromkeys(one.kind for one in seen):
        ours = [one for one in seen if one.kind == kind]
        sums = (len(ours), sum(one.looks for one in ours), sum(one.phases for one in ours))
        longest = max(one.longest_quiet_seconds for one in ours)
        print(f"{kind:<16} {sums[0]:>5} {sums[1]:>6} {sums[2]:>6} {longest:>12.0f} s {killed(ours):>6}")
    for one in seen:
        if one.outcome != "finished":
            print(f"{one.kind}{', crowded' if one.is_crowded else ''}: {one.outcome}: {one.words}")
    print(f"{len(seen)} runs, {sum(one.looks for one in seen)} looks, {killed(seen)} false kills")


def figures_of(seen: list[Seen]) -> list[Figure]:
    """The counts."""
    crowded = [one for one in seen if one.is_crowded]
    return [
        Figure("healthy runs", "runs", len(seen), len(seen)),
        Figure("of them with every core taken", "runs", len(crowded), len(seen)),
        Figure("phases of healthy runs", "phases", sum(one.phases for one in seen), len(seen)),
        Figure("looks at healthy runs", "looks", sum(one.looks for one in seen), len(seen)),
        Figure("longest quiet time in a healthy run", "s", max(one.longest_quiet_seconds for one in seen), len(seen)),
        Figure("healthy runs that were killed", "runs", killed(seen), len(seen)),
    ]


def do_import(folder: Path) -> None:
    """Import what scripts import."""
    import torch.utils.data  # noqa: F401  (loaded to be loaded)
    import transformers

    transformers.BertForSequenceClassification  # noqa: B018 - the lazy part


def do_load(folder: Path) -> None:
    """Read 200 MB of weights, several times."""
    import torch

    torch.save({"weights": torch.rand(50_000_000)}, folder / "weights.pt")
    for _ in range(5):
        torch.load(folder / "weights.pt")


def do_long_first_step(folder: Path) -> None:
    """A first step of many seconds, then short ones."""
    model, optimizer = _network()
    _work(10)
    _train(model, optimizer, 50)


def do_compile(folder: Path) -> None:
    """Compile a model without a cache."""
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(folder / "cache")
    import torch

    model, optimizer = _network()
    _train(torch.compile(model), optimizer, 10)


def do_evaluate(folder: Path) -> None:
    """Steps of milliseconds, then an evaluation of many seconds, then steps."""
    model, optimizer = _network()
    _train(model, optimizer, 200)
    model.eval()
    _work(12)
    model.train()
    _train(model, optimizer, 50)


def do_save(folder: Path) -> None:
    """Save 200 MB after every few steps and flush it to disk."""
    import torch

    model, optimizer = _network()
    model.extra = torch.nn.Parameter(torch.rand(50_000_000))
    for number in range(3):
        _train(model, optimizer, 20)
        with (folder / f"{number}.pt").open("wb") as file:
            torch.save(model.state_dict(), file)
            os.fsync(file.fileno())


def do_resume(folder: Path) -> None:
    """Train, save, load everything into new objects and continue."""
    import torch

    model, optimizer = _network()
    _train(model, optimizer, 100)
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, folder / "state.pt")
    state = torch.load(folder / "state.pt")
    model, optimizer = _network()
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    _work(4)
    _train(model, optimizer, 100)


def do_sleep_in_step(folder: Path) -> None:
    """Fast steps, and occasionally one that sleeps, like a step that retries a request."""
    model, optimizer = _network()
    for _ in range(2):
        _train(model, optimizer, 100)
        time.sleep(7)


def do_slow_worker(folder: Path) -> None:
    """A loader whose worker takes seconds for a batch."""
    import torch

    model, optimizer = _network()
    loader = torch.utils.data.DataLoader(_SlowRows(), batch_size=4, num_workers=2)
    for batch in loader:
        _step(model, optimizer, batch)


def do_wait_for_child(folder: Path) -> None:
    """The main process only waits for another that works."""
    model, optimizer = _network()
    _train(model, optimizer, 50)
    subprocess.run(
        [sys.executable, "-S", "-c", "import time; e = time.time() + 8\nwhile time.time() < e: pass"], check=True
    )
    _train(model, optimizer, 50)


def do_side_thread(folder: Path) -> None:
    """The steps come from another thread, while the main one waits for it."""
    model, optimizer = _network()
    thread = threading.Thread(target=lambda: (_work(6), _train(model, optimizer, 200)))
    thread.start()
    thread.join()


def do_child_sleeps(folder: Path) -> None:
    """A step that waits for a program longer than any step may take."""
    model, optimizer = _network()
    _train(model, optimizer, 50)
    subprocess.run(["sleep", "45"], check=True)
    _train(model, optimizer, 50)


def do_slow_answer(folder: Path) -> None:
    """A step that waits for a server's answer, as of a model that judges."""
    model, optimizer = _network()
    _train(model, optimizer, 50)
    with _server() as port, socket.create_connection(("127.0.0.1", port)) as asked:
        asked.sendall(b"judge this")
        asked.recv(1)
    _train(model, optimizer, 50)


def do_lock_of_another_job(folder: Path) -> None:
    """A lock that another program holds for a while."""
    model, optimizer = _network()
    _train(model, optimizer, 50)
    holds = (
        "import fcntl, sys, time; f = open(sys.argv[1], 'w'); fcntl.flock(f, 2); print(1, flush=True); time.sleep(45)"
    )
    other = subprocess.Popen(
        [sys.executable, "-S", "-c", holds, str(folder / "lock")], stdout=subprocess.PIPE, start_new_session=True
    )
    assert other.stdout
    other.stdout.readline()
    with (folder / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
    other.wait()
    _train(model, optimizer, 50)


def do_pause_between_epochs(folder: Path) -> None:
    """A pause longer than any step may take."""
    model, optimizer = _network()
    for _ in range(2):
        _train(model, optimizer, 50)
        time.sleep(100)


def do_map_with_workers(folder: Path) -> None:
    """A map over workers, each of which waits long."""
    model, optimizer = _network()
    _train(model, optimizer, 50)
    with multiprocessing.get_context("fork").Pool(2) as pool:
        pool.map(time.sleep, [40, 40])
    _train(model, optimizer, 50)


KINDS = {
    name.removeprefix("do_").replace("_", " "): work for name, work in list(globals().items()) if name[:3] == "do_"
}


@contextlib.contextmanager
def _server() -> Iterator[int]:
    """A server in another process that answers after 45 seconds."""
    code = (
        "import socket, time; s = socket.create_server(('127.0.0.1', 0)); print(s.getsockname()[1], flush=True); "
        "c, _ = s.accept(); time.sleep(45); c.sendall(b'1')"
    )
    server = subprocess.Popen([sys.executable, "-S", "-c", code], stdout=subprocess.PIPE, start_new_session=True)
    try:
        assert server.stdout
        yield int(server.stdout.readline())
    finally:
        server.kill()
        server.wait()


class _SlowRows:
    def __len__(self) -> int:
        return 16

    def __getitem__(self, at: int) -> object:
        import torch

        time.sleep(6 if at == 5 else 0.1)
        return torch.rand(64)


def _network():
    import torch

    torch.set_num_threads(2)
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Tanh(), torch.nn.Linear(64, 64))
    return model, torch.optim.AdamW(model.parameters())


def _train(model, optimizer, steps: int) -> None:
    import torch

    for _ in range(steps):
        _step(model, optimizer, torch.rand(32, 64))


def _step(model, optimizer, batch) -> None:
    optimizer.zero_grad()
    model(batch).square().mean().backward()
    optimizer.step()


def _work(seconds: float) -> None:
    """Multiply matrices for this long without reporting anything."""
    import torch

    end, matrix = time.monotonic() + seconds, torch.rand(700, 700)
    while time.monotonic() < end:
        matrix @ matrix


if __name__ == "__main__":
    main()
