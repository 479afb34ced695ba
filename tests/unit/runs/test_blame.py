"""Which machine's part is to blame, by what each of two left and never by whose clock was first."""

from itertools import permutations

import pytest

from holdfast.core.evidence import Evidence, Text
from holdfast.core.records import Outcome
from holdfast.runs.blame import NodePart, find_culprit, told_by


def part(how: str, *errors: str, sample: str = "", **outcome: object) -> NodePart:
    """One machine's part; its name is given when its place in the table is known."""
    seen = Evidence(errors=Text("error", enumerate(errors, 1)), samples=Text("sample", [(1, sample)] if sample else []))
    return NodePart(node="", outcome=Outcome(number=1, outcome=how, **outcome), evidence=seen)


LOST = NodePart(node="", silent_seconds=61.0)
ECHO = part("died", "RuntimeError: [1] Connection closed by peer [127.0.0.1]:45872", exit_code=1)
STRANGE = part("died", "ValueError: bad row", "ChildFailedError: train.py FAILED", exit_code=1)
NAMED = part("died", diagnosis="disk-full", confidence="likely", exit_code=1)
PROVEN = part("died", diagnosis="cuda-oom", confidence="proven", exit_code=1)
WAITED = part("died", "DistBackendError: Socket Timeout", diagnosis="nccl-timeout", confidence="proven", exit_code=1)
KILLED = part("died", exit_code=-9)
RANK_KILLED = part(
    "died", *ECHO.evidence.errors.joined.split("\n"), sample="rank 1 ended by signal SIGKILL", exit_code=1
)
ASKED = part("died", *ECHO.evidence.errors.joined.split("\n"), sample="rank 1 ended by signal SIGTERM", exit_code=1)
ALONG = part("died", "ChildFailedError: holdfast.engine FAILED", "exitcode  : 143", exit_code=143)
STOPPED = part("hung", sample="verdict stopped: by SIGSTOP")
SLEEPING = part("hung", sample="verdict sleeping: in recv")
UNKNOWN = part("hung")


@pytest.mark.parametrize(
    ("culprit", "other"),
    [
        (KILLED, PROVEN),
        (KILLED, LOST),
        (RANK_KILLED, ECHO),
        (STRANGE, ASKED),  # torchrun asked its other ranks to end
        (LOST, PROVEN),
        (LOST, ECHO),
        (PROVEN, NAMED),
        (NAMED, STRANGE),
        (STRANGE, ECHO),
        (STRANGE, WAITED),
        (STRANGE, SLEEPING),
        (STOPPED, SLEEPING),
        (SLEEPING, UNKNOWN),
        (STOPPED, ECHO),
        (STOPPED, ALONG),  # its end let the others save
        (ECHO, part("finished")),
        (ECHO, part("interrupted")),
        (UNKNOWN, part("stopped")),
    ],
)
def test_better_explanation_is_blamed_on_any_machine(culprit, other):
    for names in permutations(("a", "b")):
        parts = [named(culprit, names[0]), named(other, names[1])]
        assert find_culprit(parts) is parts[0]
        assert find_culprit(parts[::-1]) is parts[0]


def named(one: NodePart, node: str) -> NodePart:
    return NodePart(node=node, outcome=one.outcome, evidence=one.evidence, silent_seconds=one.silent_seconds)


def test_equal_evidence_blames_deterministically():
    parts = [named(ECHO, "b"), named(ECHO, "a")]
    assert find_culprit(parts) is find_culprit(parts[::-1]) is parts[1]


def test_no_one_is_blamed_without_a_failure():
    assert find_culprit([part("finished"), part("interrupted"), part("stopped")]) is None


def test_rank_is_named_with_its_machine():
    outcome, _ = told_by(named(LOST, "node-2"), 3)
    assert outcome.sentence.startswith("on node-2: nothing was heard of its supervisor for 61 s")
    assert (outcome.number, outcome.outcome, outcome.is_external) == (3, "died", True)
    ranked = part("hung", sentence="rank 1 (pid 77) is stopped")
    assert told_by(named(ranked, "node-2"), 3)[0].sentence == "on node-2: rank 1 on node-2 (pid 77) is stopped"
