"""Kills real two-tower runs in the middle of an epoch and around mining, and compares the weights they end with."""

import hashlib
import signal
import time
from pathlib import Path

import pytest

from holdfast.core.event_log import read_events
from holdfast.core.events import EpochStarted
from holdfast.core.heartbeat import read_beat
from holdfast.core.runfolder import BEAT, EVENTS, checkpoints_folder, model_folder
from tests.lab.test_engine_resume import finish, require, start, wait_for_step
from tests.tiny import tiny_attempt, tiny_bert, tiny_questions, tiny_vectors

MINING = {"from_epoch": 1, "last_rank": 20, "negatives": 2}
EPOCH = 12  # steps: 96 examples, 8 a step


@pytest.fixture(scope="module")
def parts(tmp_path_factory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("parts")
    return tiny_bert(folder / "model"), tiny_questions(folder / "prepared")


def weights(run: Path) -> dict[str, str]:
    found = sorted(model_folder(run).rglob("*.safetensors"))
    assert found
    return {path.parent.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in found}


def near_misses(run: Path) -> list[int]:
    """How many were mined at the start of each epoch, by whichever attempt did it first."""
    found: dict[int, int] = {}
    for attempt in sorted((run / "attempts").iterdir()):
        for event in read_events(attempt / EVENTS):
            if isinstance(event, EpochStarted) and "near_misses" in event.made:
                found.setdefault(event.epoch, event.made["near_misses"])
    return [found[epoch] for epoch in sorted(found)]


def wait_until(is_so) -> None:
    deadline = time.monotonic() + 60
    while not is_so():
        assert time.monotonic() < deadline, "it never came to this"
        time.sleep(0.001)


def is_mining(attempt: Path) -> bool:
    beat = read_beat(attempt / BEAT)
    return beat is not None and beat.phase == "begin epoch" and beat.step == EPOCH


def mined_epochs(attempt: Path) -> list[int]:
    started = [event for event in read_events(attempt / EVENTS) if isinstance(event, EpochStarted)]
    return [event.epoch for event in started if "near_misses" in event.made]


def has_mined(attempt: Path) -> bool:
    return bool(mined_epochs(attempt))


MOMENTS = {
    "in the middle of an epoch, after mining": lambda attempt: wait_for_step(attempt, EPOCH + 5),
    "right after mining": lambda attempt: wait_until(lambda: has_mined(attempt)),
    "while mining": lambda attempt: wait_until(lambda: is_mining(attempt)),
}


@pytest.mark.lab
@pytest.mark.parametrize(
    ("towers", "device"),
    [("shared", "cpu"), pytest.param("separate", "cpu", marks=pytest.mark.full), ("separate", "mlx")],
)
def test_kills_around_mining_keep_identical_weights(parts, tmp_path, towers, device):
    require(device)
    options = {"towers": towers, "learn_temperature": True, "mining": MINING}
    wanted = {"task": "two-tower", "options": options, "micro_tokens": 200, "device": device}
    unbroken = tmp_path / "unbroken"
    finish(tiny_attempt(unbroken, *parts, **wanted))
    assert len(near_misses(unbroken)) == 2
    for number, (moment, wait) in enumerate(MOMENTS.items()):
        broken = tmp_path / f"broken-{number}"
        attempt = tiny_attempt(broken, *parts, save_seconds=0, **wanted)
        process = start(attempt)
        wait(attempt)
        process.send_signal(signal.SIGKILL)
        process.communicate(timeout=300)
        assert process.returncode == -signal.SIGKILL
        finish(tiny_attempt(broken, *parts, number=2, **wanted))
        assert weights(broken) == weights(unbroken), moment
        assert near_misses(broken) == near_misses(unbroken)


@pytest.mark.lab
def test_mined_negatives_survive_a_kill(parts, tmp_path):
    wanted = {"task": "two-tower", "options": {"mining": MINING}}
    finish(tiny_attempt(tmp_path / "unbroken", *parts, **wanted))
    attempt = tiny_attempt(tmp_path / "broken", *parts, save_seconds=0, **wanted)
    process = start(attempt)
    wait_until((checkpoints_folder(tmp_path / "broken") / f"step-{EPOCH:09d}-begun").exists)
    process.kill()
    process.communicate(timeout=300)
    again = tiny_attempt(tmp_path / "broken", *parts, number=2, **wanted)
    finish(again)
    assert mined_epochs(again) == [2]
    assert weights(tmp_path / "broken") == weights(tmp_path / "unbroken")


@pytest.mark.lab
def test_killed_vector_towers_have_identical_weights(tmp_path):
    parts = tmp_path / "none", tiny_vectors(tmp_path / "prepared")
    options = {"vectors": {"size": 8, "hidden": 16}, "mining": MINING}
    wanted = {"task": "two-tower", "options": options, "epochs": 20}
    finish(tiny_attempt(tmp_path / "unbroken", *parts, **wanted))
    attempt = tiny_attempt(tmp_path / "broken", *parts, save_seconds=0, **wanted)
    process = start(attempt)
    wait_for_step(attempt, 3 * EPOCH + 4)
    process.kill()
    process.communicate(timeout=300)
    finish(tiny_attempt(tmp_path / "broken", *parts, number=2, **wanted))
    assert weights(tmp_path / "broken") == weights(tmp_path / "unbroken")
