import json

import pytest

from holdfast.core.artifacts import to_json
from holdfast.core.observations import (
    ExitStatus,
    Observation,
    ProcessExit,
    RankVerdict,
    TreeVerdict,
    UnknownObservation,
    Verdict,
    Wait,
    WaitingThread,
    WaitTarget,
    to_observation,
)

LOCK = Wait(kind="lock", target=WaitTarget.LOCK, wakers=frozenset({7}))
SERVER = Wait(kind="net", target=WaitTarget.ADDRESS, name="10.0.0.7:443", silent_seconds=70.0)


@pytest.mark.parametrize(
    "seen",
    [
        ExitStatus(signal="SIGKILL"),
        ProcessExit(pid=7, name="python", status=ExitStatus(code=3), rank=1, is_first=True),
        TreeVerdict(
            verdict=Verdict.WAIT_NET,
            pids=(7,),
            main=RankVerdict(
                pid=7,
                verdict=Verdict.WAIT_NET,
                wait=LOCK,
                helper=WaitingThread(pid=7, tid=9, name="fetch", wait=SERVER),
            ),
        ),
    ],
)
def test_an_observation_survives_its_file(seen):
    assert to_observation(json.loads(to_json(seen))) == seen


def test_network_silence_is_seen_through_the_waiting_thread():
    helper = WaitingThread(pid=7, tid=9, name="fetch", wait=SERVER)
    main = RankVerdict(pid=7, verdict=Verdict.WAIT_NET, wait=LOCK, helper=helper)
    assert TreeVerdict(verdict=Verdict.WAIT_NET, main=main).silent_seconds == 70.0
    assert not main.is_own_timer


@pytest.mark.parametrize("value", [{"type": "of_tomorrow", "level": 3}, {"type": "oom_kill", "kills": "many"}])
def test_an_observation_of_a_newer_version_is_kept(value):
    seen = to_observation(value)
    assert isinstance(seen, UnknownObservation)
    assert seen.fields == value


def test_every_observation_says_what_it_is():
    assert all(kind.__doc__ for kind in Observation.__subclasses__())
