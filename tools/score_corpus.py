"""Scores `diagnose` on a file of real failures with confirmed causes, one JSON object per line.

    {"id": "case-1", "evidence": "what the run printed", "exit": "SIGKILL", "label": "host-oom", "also": []}

`label` is the slug of the hazard, or none-of-these for a decoy; `also` lists slugs that are also correct; `exit` is a
code, a signal, "hang", or empty. Prints the accuracy, every wrong answer, and the named decoys. `--ledger` adds the
figures to perf/ledger.csv.
"""

import json
import sys
from collections import Counter
from pathlib import Path

# ruff: noqa: E402 - the path first, and without this file's own folder: Python's "numbers" would be tools/numbers.py
sys.path[:] = [str(Path(__file__).parents[1]), *(one for one in sys.path if one != str(Path(__file__).parent))]

from holdfast.hazards.diagnose import diagnose
from holdfast.logs.log_text import read_evidence
from perf.figures import Figure, write_figures

DECOY = "none-of-these"


def main(corpus: Path, is_kept: bool = False) -> int:
    """Print the score; return 0 if the goal is met, 1 if not, 2 without a corpus."""
    if not corpus.exists():
        print(f"corpus {corpus} not found")
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
            print(f"[x] {case['id']}: {case['label']} was named {answer.slug} ({answer.confidence}{runner_up})")
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
        figures = [Figure(name, "% of n", 100 * part / whole, whole) for name, (part, whole) in shares.items() if whole]
        write_figures("diagnosis", figures)
    return 0 if right / len(cases) >= 0.95 and not named_decoys else 1


if __name__ == "__main__":
    raise SystemExit(main(Path(sys.argv[1]), is_kept="--ledger" in sys.argv))
