"""Times how soon the command line answers, each beside a bare interpreter in the same run. Prints medians.

`help` is the whole command; `first line` is the time until any command prints something.
"""

import csv
import datetime
import platform
import statistics
import subprocess
import sys
import time
from pathlib import Path

LEDGER = Path(__file__).parent / "ledger.csv"
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
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip()
    with LEDGER.open("a", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        for name, values in seconds.items():
            median = statistics.median(values)
            print(f"{name:<32} {median * 1000:6.0f} ms   (worst {max(values) * 1000:.0f})")
            today = datetime.datetime.now(datetime.UTC).date().isoformat()
            machine = f"{platform.system()} {platform.machine()}"
            writer.writerow([today, commit, machine, "cold_start", name, "seconds", f"{median:.4f}", ROUNDS])


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
