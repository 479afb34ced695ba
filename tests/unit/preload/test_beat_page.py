"""The preload's page is the engine's page."""

import os

from holdfast_preload.beat_page import FIRST_STEP, NUMBERS, PHASES, BeatPage

from holdfast.core import heartbeat


def test_phases_match_the_engines():
    assert PHASES == heartbeat.PHASES


def test_preload_beat_is_read_like_the_engines(tmp_path):
    beat = BeatPage(str(tmp_path))
    beat.steps = 40
    beat.stepped()
    beat.stepped()
    read = heartbeat.read_beat(tmp_path / str(os.getpid()))
    assert (read.phase, read.step, read.steps, read.count) == ("step", 2, 40, 2)


def test_leaving_a_phase_restores_the_previous(tmp_path):
    beat = BeatPage(str(tmp_path))
    beat.phase = NUMBERS["step"]
    before = beat.enter(NUMBERS["save"])
    inner = beat.enter(NUMBERS["load"])
    beat.leave(inner)
    assert PHASES[beat.phase] == "save"
    beat.leave(before)
    assert PHASES[beat.phase] == "step"


def test_first_step_phase_does_not_return(tmp_path):
    beat = BeatPage(str(tmp_path))
    before = beat.enter(FIRST_STEP)
    inner = beat.enter(NUMBERS["compile"])
    beat.step = 1
    beat.leave(inner)
    assert PHASES[beat.phase] == "step"
    assert before == 0


def test_forked_process_creates_its_own_heartbeat(tmp_path):
    beat = BeatPage(str(tmp_path))
    beat.stepped()
    beat.forget()
    (tmp_path / str(os.getpid())).unlink()
    beat.beat()
    assert heartbeat.read_beat(tmp_path / str(os.getpid())).step == 0


def test_beat_without_disk_space_is_harmless(tmp_path):
    beat = BeatPage(str(tmp_path / "not there"))
    beat.stepped()
    assert beat.step == 1


def test_without_an_attempt_a_beat_leaves_no_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    BeatPage("").beat()
    assert list(tmp_path.iterdir()) == []
