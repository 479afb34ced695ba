"""A failed write is explained: the folder, the free space, what to try."""

import errno
import shutil

import pytest

from holdfast.core.disk_space import cannot_write, room_at, room_words, why_not, writing
from holdfast.core.errors import MachineError, NotNow, set_to

ELSEWHERE = set_to("out", placeholder="FOLDER")
FULL = OSError(errno.ENOSPC, "No space left on device")


def test_full_disk_names_folder_free_space_and_remedies(tmp_path):
    error = cannot_write(tmp_path / "runs" / "new", FULL, ELSEWHERE)
    assert (error.exit_code, error.slug) == (3, "disk-full")
    assert str(tmp_path / "runs" / "new") in error.what
    assert error.found.startswith("No space left on device; ")
    assert " free of " in error.found
    assert error.action == ELSEWHERE


def test_started_run_is_resumed_after_a_full_disk(tmp_path):
    (tmp_path / "request.json").touch()
    assert cannot_write(tmp_path, FULL).action.command == f"holdfast resume {tmp_path}"


@pytest.mark.parametrize("number", [errno.EIO, errno.EMFILE, errno.EROFS])
def test_started_run_is_resumed_whatever_the_write_error_was(tmp_path, number):
    (tmp_path / "request.json").touch()
    error = cannot_write(tmp_path, OSError(number, "why"))
    assert isinstance(error, NotNow)
    assert error.action.command == f"holdfast resume {tmp_path}"


def test_file_outside_the_run_is_named(tmp_path):
    run, cache = tmp_path / "run", tmp_path / "cache" / "file"
    (run / "attempts").mkdir(parents=True)
    (run / "request.json").touch()
    with pytest.raises(NotNow) as refused, writing(run, ELSEWHERE):
        raise OSError(errno.ENOSPC, "No space left on device", str(cache))
    assert str(cache) in refused.value.what
    assert ELSEWHERE not in refused.value.try_next
    with pytest.raises(NotNow, match=f"the run folder {run}"), writing(run, ELSEWHERE):
        raise OSError(errno.ENOSPC, "No space left on device", str(run / "attempts" / "01"))


@pytest.mark.parametrize(("number", "slug"), [(errno.EROFS, "permission-denied"), (errno.ESTALE, "")])
def test_free_space_is_left_out_unless_the_disk_is_full(tmp_path, number, slug):
    error = cannot_write(tmp_path, OSError(number, "why"), ELSEWHERE)
    assert (error.found, error.slug, error.try_next) == ("why", slug, (ELSEWHERE,))


def test_only_a_full_disk_is_reported_as_one(tmp_path):
    with pytest.raises(MachineError), writing(tmp_path):
        raise FULL
    with pytest.raises(FileNotFoundError), writing(tmp_path):
        raise FileNotFoundError(errno.ENOENT, "No such file or directory")


def test_missing_folder_has_the_space_of_its_parent(tmp_path):
    assert room_words(tmp_path / "a" / "b").split(" of ")[1] == room_words(tmp_path).split(" of ")[1]


def test_free_space_agrees_with_the_system(tmp_path):
    room = room_at(tmp_path)
    assert (room.total_bytes, room.is_out_of_files) == (shutil.disk_usage(tmp_path).total, False)


def test_free_space_is_left_out_for_a_quota(tmp_path):
    assert why_not(OSError(errno.EDQUOT, "Disk quota exceeded"), tmp_path) == "Disk quota exceeded"
