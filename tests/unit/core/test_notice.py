"""Notices between machines: half of one is none, and no clock of the writer counts."""

import pytest

from holdfast.core.notice import NoticeWriter, Seen, read_notice


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_shorter_notice_leaves_nothing_of_a_longer_one(tmp_path):
    writer = NoticeWriter(tmp_path / "notice")
    writer.write({"words": "x" * 500})
    writer.write({"words": "short"})
    assert read_notice(tmp_path / "notice", dict).said == {"words": "short"}


def test_restarted_writer_continues_its_count(tmp_path):
    NoticeWriter(tmp_path / "notice").write({})
    NoticeWriter(tmp_path / "notice").write({})
    assert read_notice(tmp_path / "notice", dict).count == 2


@pytest.mark.parametrize("content", ["", "3\n", '3\n{"a": 1}\n', '3\n{"a": 1}\n2\n', "3\n[]\n3\n", '3\n{"a": \n3\n'])
def test_half_a_notice_is_ignored(tmp_path, content):
    (tmp_path / "notice").write_text(content)
    assert read_notice(tmp_path / "notice", dict) is None


def test_time_counts_only_while_the_notice_is_unchanged(tmp_path):
    clock, path = Clock(), tmp_path / "notice"
    writer, seen = NoticeWriter(path), Seen(path, dict, clock)
    writer.write({"state": "here"})
    seen.look()
    assert (seen.has_moved, seen.still_seconds) == (False, 0.0)  # it may be years old
    for _ in range(3):
        clock.now += 2
        seen.look()
    assert seen.still_seconds == 6.0
    clock.now += 3600  # the reader was held up, or its machine slept
    seen.look()
    assert seen.still_seconds == 6.0
    path.rename(tmp_path / "away")  # the storage is gone for a while
    clock.now += 2
    seen.look()
    assert seen.said == {"state": "here"}
    (tmp_path / "away").rename(path)
    clock.now += 2
    seen.look()
    assert seen.still_seconds == 6.0
    writer.write({"state": "left"})
    seen.look()
    assert (seen.has_moved, seen.still_seconds, seen.said) == (True, 0.0, {"state": "left"})
