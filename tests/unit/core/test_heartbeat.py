"""The beat: what a reader may believe of a page that another process writes."""

import os
import struct

from holdfast.core.heartbeat import PHASES, BeatWriter, read_beat


def test_a_reader_sees_the_last_beat(tmp_path):
    writer = BeatWriter(tmp_path / "beat")
    assert read_beat(tmp_path / "beat") is None, "nothing was said yet"
    writer.enter("step", 7, 90)
    writer.beat(8)
    beat = read_beat(tmp_path / "beat")
    assert beat is not None
    assert (beat.phase, beat.step, beat.steps, beat.count) == ("step", 8, 90, 2)


def test_permanently_half_written_heartbeat_is_ignored(tmp_path):
    BeatWriter(tmp_path / "beat").enter("step", 7, 90)
    with (tmp_path / "beat").open("rb+") as page:
        page.write(struct.pack("<Q", 3))
    assert read_beat(tmp_path / "beat") is None


def test_a_beat_written_while_it_is_read_is_read_again(tmp_path, monkeypatch):
    writer = BeatWriter(tmp_path / "beat")
    writer.enter("step", 1, 90)
    plain, reads = os.pread, []

    def pread(file: int, size: int, offset: int) -> bytes:
        reads.append(offset)
        if len(reads) == 3:  # the counter is to be read again: the body is of the beat before
            writer.enter("save", 2, 90)
        return plain(file, size, offset)

    monkeypatch.setattr(os, "pread", pread)
    beat = read_beat(tmp_path / "beat")
    assert beat is not None
    assert (beat.phase, beat.step) == ("save", 2)
    assert len(reads) == 6


def test_a_short_page_and_an_unknown_phase_are_none(tmp_path):
    (tmp_path / "short").write_bytes(b"\2\0\0")
    assert read_beat(tmp_path / "short") is None
    assert read_beat(tmp_path / "absent") is None
    (tmp_path / "newer").write_bytes(struct.pack("<QQQQQ", 2, len(PHASES), 1, 1, 1))
    assert read_beat(tmp_path / "newer") is None
