"""Which machine's part is to blame, by what each of two left and never by whose clock was first."""

from itertools import permutations

import pytest

from holdfast.core.evidence import Cause, Evidence, Text
from holdfast.core.observations import ExitStatus, Observation, ProcessExit, TreeVerdict, Verdict
from holdfast.core.records import Interruption, Outcome
from holdfast.runs.joint_outcome import NodePart, find_culprit, told_by


def part(how: str, *errors: str, seen: Observation | None = None, **outcome: object) -> NodePart:
    """One machine's part; its name is given when its place in the table is known."""
    evidence = Evidence(errors=Text("error", enumerate(errors, 1)), observations=(seen,) if seen else ())
    return NodePart(node="", outcome=Outcome(number=1, outcome=how, **outcome), evidence=evidence)


def rank_exit(signal: str) -> ProcessExit:
    return ProcessExit(pid=32, name="python", rank=1, status=ExitStatus(signal=signal))


LOST = NodePart(node="", silent_seconds=61.0)
ECHO = part("died", "RuntimeError: [1] Connection closed by peer [127.0.0.1]:45872", exit_code=1)
STRANGE = part("died", "ValueError: bad row", "ChildFailedError: train.py FAILED", exit_code=1)
NAMED = part("died", diagnosis="disk-full", confidence="likely", exit_code=1)
PROVEN = part("died", diagnosis="cuda-oom", confidence="proven", exit_code=1)
WAITED = part("died", "DistBackendError: Socket Timeout", diagnosis="nccl-timeout", confidence="proven", exit_code=1)
KILLED = part("died", exit_code=-9)
RANK_KILLED = part("died", *ECHO.evidence.errors.joined.split("\n"), seen=rank_exit("SIGKILL"), exit_code=1)
ASKED = part("died", *ECHO.evidence.errors.joined.split("\n"), seen=rank_exit("SIGTERM"), exit_code=1)
ALONG = part("died", "ChildFailedError: holdfast.engine FAILED", "exitcode  : 143", exit_code=143)
STOPPED = part("hung", seen=TreeVerdict(verdict=Verdict.STOPPED))
SLEEPING = part("hung", seen=TreeVerdict(verdict=Verdict.SLEEPING))
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


def test_no_machine_is_blamed_without_a_failure():
    assert find_culprit([part("finished"), part("interrupted"), part("stopped")]) is None


def test_rank_is_named_with_its_machine():
    outcome, _ = told_by(named(LOST, "node-2"), 3)
    assert outcome.interruption == Interruption(kind="not_heard_from", nodes=("node-2",), seconds=61.0)
    assert (outcome.number, outcome.outcome, outcome.is_external) == (3, "died", True)
    outcome, _ = told_by(named(part("hung", cause=cause_of_a_hang()), "node-2"), 3)
    assert outcome.cause.node == "node-2"


def cause_of_a_hang() -> Cause:
    return Cause(slug="process-stopped", confidence="proven", title="a process was stopped")
