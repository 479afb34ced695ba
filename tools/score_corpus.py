"""Scores `diagnose` on a file of real failures with confirmed causes, one JSON object a line.

    {"id": "case-1", "evidence": "what the run printed", "exit": "SIGKILL", "label": "host-oom", "also": []}

`label` is the slug of its hazard, or none-of-these for a decoy; `also` holds slugs that are right too; `exit` is a
code, a signal, "hang", or empty. Prints accuracy, every wrong answer, and the decoys that were named. `--ledger` adds
the figures to perf/ledger.csv.
"""

import csv
import datetime
import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

from holdfast.core.logtext import read_evidence
from holdfast.supervisor.diagnose import diagnose

DECOY = "none-of-these"
LEDGER = Path(__file__).parents[1] / "perf" / "ledger.csv"


def main(corpus: Path, is_kept: bool = False) -> int:
    """Print the score; 0 when the bar is met, 1 when not, 2 without a corpus."""
    if not corpus.exists():
        print(f"there is no corpus {corpus}")
        return 2
    cases = [json.loads(line) for line in corpus.read_text(encoding="utf-8").splitlines() if line.strip()]
    right, named_decoys, confidences = 0, 0, Counter[tuple[str, bool]]()
    for case in cases:
        answer = diagnose(read_evidence(case["evidence"], case["exit"]))
        wanted = {"unknown"} if case["label"] == DECOY else {case["label"], *case["also"]}
        is_right = answer.slug in wanted
        right += is_right
        named_decoys += case["label"] == DECOY and not is_right
        confidences[answer.confidence, is_right] += 1
        if not is_right:
            runner_up = f", runner-up {answer.runner_up}" if answer.runner_up else ""
            print(f"[x] {case['id']}: {case['label']} was called {answer.slug} ({answer.confidence}{runner_up})")
    for confidence in ("proven", "likely", "unknown"):
        total = confidences[confidence, True] + confidences[confidence, False]
        print(f"    {confidence}: {confidences[confidence, True]} right of {total}")
    print(f"{right} right of {len(cases)} ({right / len(cases):.1%}), {named_decoys} decoys named")
    if is_kept:
        decoys = sum(case["label"] == DECOY for case in cases)
        shares = {"right": (right, len(cases)), "decoys named": (named_decoys, decoys)}
        for confidence in ("proven", "likely", "unknown"):
            rights = confidences[confidence, True]
            shares[f"right when it said {confidence}"] = (rights, rights + confidences[confidence, False])
        _write(shares)
    return 0 if right / len(cases) >= 0.95 and not named_decoys else 1


def _write(shares: dict[str, tuple[int, int]]) -> None:
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip()
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    with LEDGER.open("a", newline="", encoding="utf-8") as file:
        for subject, (part, whole) in shares.items():
            if whole:
                row = [today, commit, "any", "diagnosis", subject, "% of n", f"{100 * part / whole:.1f}", whole]
                csv.writer(file).writerow(row)


if __name__ == "__main__":
    raise SystemExit(main(Path(sys.argv[1]), is_kept="--ledger" in sys.argv))
