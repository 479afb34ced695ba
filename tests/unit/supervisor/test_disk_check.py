"""A disk that becomes full while something trains is told of once, until there is room again."""

import threading

import pytest

from holdfast.core.disk_space import Room
from holdfast.supervisor.disk_check import FullDisk

PLENTY = Room(free_bytes=10**9, total_bytes=10**10, is_out_of_files=False)
FULL = Room(free_bytes=0, total_bytes=10**10, is_out_of_files=False)
NO_FILES = Room(free_bytes=10**9, total_bytes=10**10, is_out_of_files=True)


@pytest.fixture
def told(tmp_path, monkeypatch):
    """What is told when the room is such, one after the other."""
    disk, clock = FullDisk(tmp_path), iter(range(0, 1000, 20))

    def look(room):
        monkeypatch.setattr("holdfast.supervisor.disk_check.room_at", lambda folder: room)
        now = next(clock)
        first = disk.check(now)
        for thread in threading.enumerate():
            if thread.name == "disk":
                thread.join()
        return first or disk.check(now + 1)

    return look


@pytest.mark.parametrize("full", [FULL, NO_FILES])
def test_full_disk_is_reported_once_until_space_is_free(told, tmp_path, full):
    events = [told(room) for room in (PLENTY, full, full, PLENTY, full)]
    assert [event is not None for event in events] == [False, True, False, False, True]
    assert events[1].folder == str(tmp_path)


def test_unresponsive_disk_does_not_block(tmp_path, monkeypatch):
    answers = threading.Event()
    monkeypatch.setattr("holdfast.supervisor.disk_check.room_at", lambda folder: answers.wait(60) and PLENTY)
    disk = FullDisk(tmp_path)
    assert [disk.check(now) for now in (0.0, 20.0, 40.0)] == [None, None, None]
    assert sum(thread.name == "disk" for thread in threading.enumerate()) == 1
    answers.set()
