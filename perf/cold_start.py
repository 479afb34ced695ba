"""Times how soon the command line responds, compared with a bare interpreter in the same run. Prints medians.

`help` is the whole command; `first line` is the time until any command prints something.
"""

import statistics
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from perf.figures import Figure, write_figures

HOLDFAST = str(Path(sys.executable).parent / "holdfast")
ROUNDS = 15
COMMANDS = {
    "bare python": [sys.executable, "-c", "print(1)"],
    "holdfast --help": [HOLDFAST, "--help"],
    "holdfast doctor: first line": [HOLDFAST, "doctor"],
    "holdfast explain SLUG": [HOLDFAST, "explain", "openmp-duplicate"],
    "holdfast explain LOG": [HOLDFAST, "explain", str(Path(__file__).parents[1] / "examples" / "crashed_run.log")],
}


def main() -> None:
    """Interleave the commands, print the medians and add them to the ledger."""
    seconds: dict[str, list[float]] = {name: [] for name in COMMANDS}
    for _ in range(ROUNDS):
        for name, command in COMMANDS.items():
            seconds[name].append(first_output_seconds(command))
    figures = [Figure(name, "seconds", statistics.median(values), ROUNDS) for name, values in seconds.items()]
    write_figures("cold_start", figures)


def first_output_seconds(command: list[str]) -> float:
    """Seconds from the start of a command to the first byte it prints."""
    begun = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
        assert process.stdout
        process.stdout.read(1)
        taken = time.perf_counter() - begun
        process.kill()
    return taken


if __name__ == "__main__":
    main()
