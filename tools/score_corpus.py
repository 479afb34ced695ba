"""Scores `diagnose` on a file of real failures with confirmed causes, one JSON object a line.

Prints accuracy, every wrong answer, and the decoys that were named. Fields used: id, label, also, evidence, exit.
"""

import json
import sys
from collections import Counter
from pathlib import Path

from holdfast.core.logtext import read_evidence
from holdfast.supervisor.diagnose import diagnose

DECOY = "none-of-these"


def main(corpus: Path) -> int:
    """Print the score; 0 when the bar is met, 1 when not."""
    if not corpus.exists():
        print(f"no corpus at {corpus}: skipped")
        return 0
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
    return 0 if right / len(cases) >= 0.95 and not named_decoys else 1


if __name__ == "__main__":
    raise SystemExit(main(Path(sys.argv[1])))
