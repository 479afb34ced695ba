"""Scores `diagnose` on files of real failures with confirmed causes, one JSON object per line.

    {"id": "case-1", "evidence": "what the run printed", "exit": "SIGKILL", "label": "host-oom", "also": []}

`label` is the slug of the hazard, or none-of-these for a decoy; `also` lists slugs that are also correct; `exit` is a
code, a signal, "hang", or empty. Of a file collected without regard to hazards, `kind` says whether a hazard knows the
cause: known, user-bug or uncovered, the last with `would_be`, a proposed slug.

Half of each file is kept aside: the cases whose id has an odd SHA-256. Nobody reads these while hazards are written, so
their figures are what to expect of unseen failures. Prints, for each half, the figures, every wrong answer of the other
half, what was confused with what, and how often each confidence was right. `--ledger` adds the figures to the ledger.
"""

import hashlib
import json
import os
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

# ruff: noqa: E402 - the path first, and without this file's own folder: Python's "numbers" would be tools/numbers.py
sys.path[:] = [str(Path(__file__).parents[1]), *(one for one in sys.path if one != str(Path(__file__).parent))]

from holdfast.hazards.diagnose import diagnose
from holdfast.logs.log_text import read_evidence
from perf.figures import Figure, write_figures

DECOY = "none-of-these"
_GOAL, _MOST_NAMED_DECOYS = 0.93, 0


@dataclass(frozen=True, slots=True)
class Scored:
    """One case with its answer."""

    id: str
    label: str  # the slug that a new hazard took, for a cause that had none
    kind: str
    answer: str
    confidence: str
    is_right: bool

    @property
    def is_decoy(self) -> bool:
        """True when no cause should be named."""
        return self.label == DECOY

    @property
    def is_wrongly_named(self) -> bool:
        """True when a cause was named and it is not the confirmed one."""
        return not self.is_right and self.answer != "unknown"


def main(files: Iterable[Path], is_kept: bool = False) -> int:
    """Print the scores; return 0 if the goals are met on the halves kept aside, 1 if not, 2 without a file."""
    figures: list[Figure] = []
    met = True
    for file in files:
        if not file.exists():
            print(f"corpus {file} not found")
            return 2
        cases = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines() if line.strip()]
        for name, half in (("seen", False), ("kept aside", True)):
            scored = [_score(case) for case in cases if _is_kept_aside(case["id"]) is half]
            if not scored:
                continue
            print(f"\n{file.name}, {name}: {len(scored)} cases")
            found = list(_figures(f"{file.stem}, {name}", scored))
            for figure in found:
                print(f"    {figure.subject}: {figure.value:.1f}% of {figure.rounds}")
            _print_confusion(scored, is_half_open=not half)
            figures += found
            if half:
                met &= not any(one.is_wrongly_named and one.confidence == "proven" for one in scored)
                met &= _meets_goal(scored)
    if is_kept:
        write_figures("diagnosis", figures)
    return 0 if met else 1


def _is_kept_aside(case_id: str) -> bool:
    return int(hashlib.sha256(case_id.encode()).hexdigest(), 16) % 2 == 1


def _score(case: dict[str, object]) -> Scored:
    answer = diagnose(read_evidence(str(case["evidence"]), str(case["exit"])))
    label, kind, also = str(case["label"]), str(case.get("kind") or ""), case["also"]
    assert isinstance(also, list)
    right = {"unknown" if label == DECOY else label, *also}
    if kind == "uncovered":  # the hazard may have come since; an honest "unknown" is no mistake either
        label = str(case["would_be"]).partition(":")[0]
        right = {"unknown", label, *also}
    return Scored(str(case["id"]), label, kind, answer.slug, answer.confidence, answer.slug in right)


def _figures(name: str, scored: list[Scored]) -> Iterator[Figure]:
    def share(what: str, part: Iterable[Scored], whole: list[Scored]) -> Iterator[Figure]:
        if whole:
            yield Figure(f"{name}: {what}", "% of n", 100 * sum(1 for _ in part) / len(whole), len(whole))

    yield from share("right", (one for one in scored if one.is_right), scored)
    if any(one.kind for one in scored):
        covered = [one for one in scored if one.kind == "known"]
        yield from share("cause named", (one for one in scored if one.is_right and one.answer != "unknown"), scored)
        yield from share("covered ones named", (one for one in covered if one.is_right), covered)
    decoys = [one for one in scored if one.is_decoy]
    yield from share("decoys named", (one for one in decoys if not one.is_right), decoys)
    yield from share("named wrongly", (one for one in scored if one.is_wrongly_named), scored)
    for confidence in ("proven", "likely", "unknown"):
        told = [one for one in scored if one.confidence == confidence]
        yield from share(f"right when it said {confidence}", (one for one in told if one.is_right), told)


def _print_confusion(scored: list[Scored], is_half_open: bool) -> None:
    """Which cause was taken for which; the cases themselves only of the half that people may read."""
    for (label, answer), count in Counter((one.label, one.answer) for one in scored if not one.is_right).most_common():
        print(f"    [x] {label} was named {answer}: {count}")
    for one in scored:
        if not one.is_right and is_half_open:
            print(f"        {one.id} ({one.confidence})")


def _meets_goal(scored: list[Scored]) -> bool:
    named_decoys = sum(one.is_decoy and not one.is_right for one in scored)
    return sum(one.is_right for one in scored) >= _GOAL * len(scored) and named_decoys <= _MOST_NAMED_DECOYS


if __name__ == "__main__":
    names = [name for name in sys.argv[1:] if name != "--ledger"] or os.environ.get("HOLDFAST_CORPUS", "").split(
        os.pathsep
    )
    raise SystemExit(main([Path(name) for name in names], is_kept="--ledger" in sys.argv))
