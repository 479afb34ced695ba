"""A folder that cannot be written is named, with the room that is left and what to try."""

import errno
import shutil

import pytest

from holdfast.core.disk_space import cannot_write, room_at, room_words, why_not, writing
from holdfast.core.errors import MachineError, NotNow

FULL = OSError(errno.ENOSPC, "No space left on device")


def test_a_full_disk_names_the_folder_its_room_and_both_ways_on(tmp_path):
    error = cannot_write(tmp_path / "runs" / "new", FULL, "--out FOLDER")
    assert (error.exit_code, error.slug) == (3, "disk-full")
    assert str(tmp_path / "runs" / "new") in error.what
    assert error.seen.startswith("No space left on device; ")
    assert " free of " in error.seen
    assert error.try_next == ("make room, then start it again", "--out FOLDER")


def test_a_run_that_has_begun_is_to_be_resumed(tmp_path):
    (tmp_path / "request.json").touch()
    assert cannot_write(tmp_path, FULL).try_next == (f"make room, then: holdfast resume {tmp_path}",)


@pytest.mark.parametrize("number", [errno.EIO, errno.EMFILE, errno.EROFS])
def test_a_run_that_has_begun_is_to_be_resumed_whatever_kept_it_from_being_written(tmp_path, number):
    (tmp_path / "request.json").touch()
    error = cannot_write(tmp_path, OSError(number, "why"))
    assert isinstance(error, NotNow)
    assert error.try_next == (f"put that right, then: holdfast resume {tmp_path}",)


def test_what_lies_elsewhere_is_named_where_the_error_names_it(tmp_path):
    run, cache = tmp_path / "run", tmp_path / "cache" / "file"
    (run / "attempts").mkdir(parents=True)
    (run / "request.json").touch()
    with pytest.raises(NotNow) as refused, writing(run, "--out FOLDER"):
        raise OSError(errno.ENOSPC, "No space left on device", str(cache))
    assert refused.value.what == f"{cache} cannot be written"
    assert refused.value.try_next == (f"make room, then: holdfast resume {run}",)
    with pytest.raises(NotNow, match=f"the run folder {run} cannot"), writing(run, "--out FOLDER"):
        raise OSError(errno.ENOSPC, "No space left on device", str(run / "attempts" / "01"))


@pytest.mark.parametrize(("number", "slug"), [(errno.EROFS, "permission-denied"), (errno.ESTALE, "")])
def test_room_is_no_matter_where_the_disk_is_not_full(tmp_path, number, slug):
    error = cannot_write(tmp_path, OSError(number, "why"), "--out FOLDER")
    assert (error.seen, error.slug, error.try_next) == ("why", slug, ("--out FOLDER",))


def test_only_a_full_disk_is_taken_for_one(tmp_path):
    with pytest.raises(MachineError), writing(tmp_path):
        raise FULL
    with pytest.raises(FileNotFoundError), writing(tmp_path):
        raise FileNotFoundError(errno.ENOENT, "No such file or directory")


def test_the_room_of_what_is_not_there_yet_is_that_of_the_folder_around_it(tmp_path):
    assert room_words(tmp_path / "a" / "b").split(" of ")[1] == room_words(tmp_path).split(" of ")[1]


def test_the_room_is_counted_as_the_system_counts_it(tmp_path):
    room = room_at(tmp_path)
    assert (room.total_bytes, room.is_out_of_files) == (shutil.disk_usage(tmp_path).total, False)


def test_the_room_of_the_disk_is_not_told_for_a_quota(tmp_path):
    assert why_not(OSError(errno.EDQUOT, "Disk quota exceeded"), tmp_path) == "Disk quota exceeded"
