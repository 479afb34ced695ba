"""Adds figures to the ledger: date, commit, machine with its load, and the measurement."""

import csv
import datetime
import os
import platform
import subprocess
from dataclasses import dataclass
from pathlib import Path

LEDGER = Path(__file__).parent / "ledger.csv"


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure; a median where `rounds` is more than one."""

    subject: str
    unit: str
    value: float
    rounds: int


def commit_and_machine(device: str = "cpu") -> tuple[str, str]:
    """The commit and the machine; HOLDFAST_COMMIT names the commit in a copy without git."""
    asked = ["git", "rev-parse", "--short", "HEAD"]
    commit = os.environ.get("HOLDFAST_COMMIT") or subprocess.run(asked, capture_output=True, text=True).stdout.strip()
    if device.startswith("cuda"):
        import torch

        return commit, f"{torch.cuda.get_device_name()}, torch {torch.__version__}"
    return commit, f"{platform.system()} {platform.machine()} {os.cpu_count()} cores, load {os.getloadavg()[1]:.0f}"


def write_figures(benchmark: str, figures: list[Figure], device: str = "cpu") -> None:
    """Print the figures and add them to the ledger."""
    commit, machine = commit_and_machine(device)
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    with LEDGER.open("a", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        for one in figures:
            print(f"{benchmark:<20} {one.subject:<58} {one.value:10.4g} {one.unit}")
            row = [today, commit, machine, benchmark, one.subject, one.unit, f"{one.value:.6g}", one.rounds]
            writer.writerow(row)
