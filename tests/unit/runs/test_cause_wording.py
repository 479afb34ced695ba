"""The sentence about a failure: the snapshots of its wording, and what it is made of."""

import msgspec
import pytest

from holdfast.core.artifacts import write_artifact
from holdfast.core.evidence import Cause
from holdfast.core.observations import (
    Activity,
    Asked,
    CodePlace,
    DiskSpace,
    ExitStatus,
    GivenUp,
    KilledExternally,
    NoOomKill,
    Observation,
    OomKill,
    RankStack,
    RankVerdict,
    TreeVerdict,
    Verdict,
    Wait,
    WaitTarget,
)
from holdfast.core.records import CollectedEvidence, Interruption, Outcome, read_record, write_record
from holdfast.core.runfolder import OUTPUT
from holdfast.hazards.diagnose import diagnose
from holdfast.runs.cause_wording import cause_sentence, full_cause_text, outcome_text
from holdfast.runs.observation_wording import activity_text, observation_text
from holdfast.supervisor.cause import find_cause
from holdfast.supervisor.collect import read_attempt_evidence, read_collected

QUIET = NoOomKill(cgroups=("/job",), limit_bytes=4_000_000_000, is_system_asked=True)
SLEEP = Wait(kind="sleep", target=WaitTarget.SLEEP)
RANKS = (
    RankVerdict(pid=32, rank=1, verdict=Verdict.SLEEPING, wait=SLEEP),
    RankVerdict(pid=31, rank=0, verdict=Verdict.TIMED, wait=Wait(kind="timed", target=WaitTarget.TIMEOUT)),
)
TOO_LONG = GivenUp(reason="wait_too_long", phase="step", seconds=91.0, limit_seconds=90.0)


@pytest.fixture
def cause(tmp_path):
    """The cause that is found in the evidence of an attempt, read back from its files."""

    def found(status: ExitStatus, *observations: Observation, log: str = "", **more: object) -> Cause:
        (tmp_path / OUTPUT).write_text(log)
        write_record(tmp_path, CollectedEvidence(exit=status, observations=observations, **more))
        evidence = read_attempt_evidence(tmp_path)
        return find_cause(evidence, diagnose(evidence), read_collected(tmp_path))

    return found


KILLED = ExitStatus(signal="SIGKILL")
HUNG = ExitStatus(is_hang=True)


def test_a_kernel_kill_names_limit_count_memory_and_phase(cause):
    kill = OomKill(kills=1, cgroup="/sys/fs/cgroup/job", limit_bytes=4_000_000_000, peak_bytes=4_000_000_000)
    assert cause_sentence(cause(KILLED, kill, phase="evaluate", resident_bytes=3_900_000_000)) == (
        "killed by the kernel for memory: cgroup limit 4.0 GB, 1 OOM kill counted, resident 3.9 GB while evaluating"
    )


def test_an_external_kill_is_not_called_memory(cause):
    found = cause(KILLED, QUIET, KilledExternally(signal="SIGKILL"), phase="step", step=40)
    assert (found.slug, found.proof, found.memory_kill) == ("process-killed", KilledExternally(signal="SIGKILL"), None)
    assert cause_sentence(found).startswith("ended by signal SIGKILL at step 40: ")


def test_a_hang_names_the_rank_that_holds_up_the_others(cause):
    verdict = TreeVerdict(verdict=Verdict.SLEEPING, main=RANKS[0], ranks=RANKS)
    found = cause(HUNG, verdict, TOO_LONG, phase="step", step=20, steps=100)
    assert (found.slug, found.proof) == ("rank-stuck", TOO_LONG)
    assert [one.rank for one in found.verdict.ranks] == [1, 0]
    assert "rank 1 (process 32): sleeps, and holds up the others; rank 0" in cause_sentence(found)


def test_cause_sentence_uses_rank_stacks(cause):
    place = CodePlace(file="train.py", line=7, function="load")
    stacks = (
        RankStack(rank=1, pid=32, place=place, holds_up=True),
        RankStack(rank=0, pid=31, place=CodePlace(file="x", line=1), collective="all_reduce"),
    )
    verdict = TreeVerdict(verdict=Verdict.SLEEPING, main=RANKS[0], ranks=RANKS)
    found = cause(HUNG, verdict, TOO_LONG, *stacks, phase="step", step=20)
    assert (found.proof, found.ranks) == (None, stacks)
    assert cause_sentence(found).endswith(
        "(rank 1 (pid 32) holds up the others: it is at train.py:7 in load; "
        "rank 0 (pid 31) waits for the others in all_reduce, at x:1)"
    )


def test_of_several_machines_the_ranks_are_named_with_theirs(cause):
    stack = RankStack(rank=1, pid=32, place=CodePlace(file="x", line=1), holds_up=True)
    found = cause(HUNG, TreeVerdict(verdict=Verdict.STOPPED, pids=(32,)), GivenUp(reason="verdict"), stack)
    text = cause_sentence(Cause(**{name: getattr(found, name) for name in found.__struct_fields__} | {"node": "b"}))
    assert text.startswith("on b: hung: ")
    assert "rank 1 on b (pid 32)" in text


def test_unknown_cause_names_error_and_ruled_out_causes(cause):
    log = "Traceback (most recent call last):\n  File \"train.py\", line 3, in <module>\nKeyError: 'answer'"
    found = cause(ExitStatus(code=1), QUIET, Asked(questions=("process_exits", "disks")), log=log)
    assert (found.slug, found.error) == ("unknown", "KeyError: 'answer'")
    assert found.ruled_out == ("memory_kill", "crash_of_another_process", "full_disk")
    assert "ruled out: a memory kill (none was counted), a crash" in cause_sentence(found)


def test_what_was_never_asked_is_not_ruled_out(cause):
    assert cause(ExitStatus(code=1), QUIET, log="KeyError: 'x'").ruled_out == ("memory_kill",)


def test_full_disk_is_not_ruled_out_if_one_is_full(cause):
    full = DiskSpace(folder="/runs", free_bytes=0, total_bytes=10_000_000)
    assert "full_disk" not in cause(ExitStatus(code=1), full, log="KeyError: 'x'").ruled_out


def test_an_unknown_hang_says_why_it_was_given_up(cause):
    sleeps = TreeVerdict(verdict=Verdict.SLEEPING, main=RANKS[0])
    found = cause(HUNG, sleeps, TOO_LONG, Asked(questions=("waits",)))
    assert (found.slug, found.given_up, found.ruled_out) == ("unknown", TOO_LONG, ("deadlock",))
    assert "the cause is unknown (sleeps; 91 s in phase step, where the limit is 90 s)" in cause_sentence(found)


def test_crash_is_not_worded_as_probable(cause):
    found = cause(ExitStatus(signal="SIGSEGV"), QUIET)
    assert (found.slug, found.confidence) == ("segfault-other", "proven")


def test_a_crash_names_the_innermost_frame(cause):
    log = (
        "Fatal Python error: Segmentation fault\n\nCurrent thread 0x00007f (most recent call first):\n"
        '  File "/lib/python3.11/ctypes/__init__.py", line 519 in string_at\n  File "train.py", line 12 in <module>\n'
    )
    assert cause(ExitStatus(signal="SIGSEGV"), QUIET, log=log).crashed_in.function == "string_at"


def test_an_end_without_a_fault_says_so(cause):
    text = cause_sentence(cause(ExitStatus(code=0)))
    assert text == "ended with code 0, and nothing in its output is a known failure"


def test_a_cause_survives_the_file_of_the_outcome(cause, tmp_path):
    kill = OomKill(kills=1, cgroup="/sys/fs/cgroup/job", limit_bytes=4_000_000_000)
    outcome = Outcome(number=1, outcome="died", cause=cause(KILLED, kill))
    write_record(tmp_path, outcome)
    assert read_record(tmp_path, Outcome) == outcome


def test_evidence_of_a_newer_version_is_still_read(tmp_path):
    seen = [{"type": "of_tomorrow", "level": 3}, {"type": "oom_kill", "kills": 1}]
    write_artifact(tmp_path, "evidence.json", {"exit": {"type": "exit_status", "code": 1}, "observations": seen})
    collected = read_collected(tmp_path)
    assert collected.exit == ExitStatus(code=1)
    assert collected.observations[1] == OomKill(kills=1)


def test_activity_is_worded_from_an_event_and_from_its_json():
    server = Wait(kind="net", target=WaitTarget.ADDRESS, name="10.0.0.7:443", silent_seconds=70.0)
    main = RankVerdict(pid=7, verdict=Verdict.WAIT_NET, wait=server)
    activity = Activity(verdict=TreeVerdict(verdict=Verdict.WAIT_NET, main=main), waited_seconds=70, limit_seconds=90)
    plain = {
        "verdict": {
            "type": "tree_verdict",
            "verdict": "waits_for_network",
            "main": {
                "pid": 7,
                "verdict": "waits_for_network",
                "wait": {"kind": "net", "target": "address", "name": "10.0.0.7:443", "silent_seconds": 70.0},
            },
        },
        "waited_seconds": 70,
        "limit_seconds": 90,
    }
    expected = "waits for 10.0.0.7:443, nothing received for 70 s; given up after 1 min 30 s"
    assert activity_text(activity) == activity_text(msgspec.convert(plain, Activity)) == expected


@pytest.mark.parametrize("kind", Observation.__subclasses__())
def test_every_observation_has_a_sentence(kind):
    samples = {str: "x", int: 1, float: 1.0}
    needed = {
        "status": ExitStatus(code=1),
        "place": CodePlace(file="x", line=1),
        "verdict": Verdict.MOVING,
        "how": "own" if kind.__name__ == "MutexWait" else "hung",
        "reason": "wait_too_long",
        "fields": {"type": "of_tomorrow"},
        "child_exit": None,
        "system": "portable",
        "unseen": ("waits",),
        "questions": ("disks",),
    }
    import msgspec

    fields = [one for one in msgspec.structs.fields(kind) if one.required]
    values = {one.name: needed[one.name] if one.name in needed else samples[one.type] for one in fields}
    assert observation_text(kind(**values))


@pytest.mark.parametrize(
    ("why", "text"),
    [
        (
            Interruption(kind="supervisor_killed", step=7, phase="step"),
            "its supervisor was killed at step 7",
        ),
        (
            Interruption(kind="supervisor_restarted", nodes=("b",)),
            "on b: its supervisor was killed and restarted",
        ),
        (
            Interruption(kind="not_heard_from", nodes=("b",), seconds=61.0),
            "on b: its supervisor has not reported for 1 min 1 s: it was killed, or the machine is off or cannot reach "
            "the run folder",
        ),
        (
            Interruption(kind="asked_to_leave", nodes=("b", "c")),
            "b, c was asked to leave; the run continues when enough machines have joined",
        ),
        (Interruption(kind="ended_early", nodes=("b",)), "ended early on b"),
        (
            Interruption(kind="unreachable", nodes=("a",), host="10.9.8.7", port=29, message="timed out"),
            "the other machines could not reach a at 10.9.8.7, port 29 (timed out); if they reach it at another "
            "address, set HOLDFAST_NODE_ADDRESS=ADDRESS on a",
        ),
        (Interruption(kind="not_started", nodes=("b",), message="no python"), "on b: cannot be started: no python"),
    ],
)
def test_interruption_is_worded(why, text):
    assert outcome_text(Outcome(number=1, outcome="died", interruption=why)) == text
    assert full_cause_text(msgspec.convert(msgspec.to_builtins(why), Interruption)) == text


def test_advice_below_an_error_is_not_the_error(cause):
    log = "error: a shared tower cannot take vectors of two sizes\n  found  6 and 8\n  try    --towers separate\n"
    assert cause(ExitStatus(code=2), log=log).error == log.splitlines()[0]
