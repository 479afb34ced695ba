"""Room where a run writes, with missing folders, links and odd mounts."""

import os
from pathlib import Path

from holdfast.machine.resources import disk_at, filesystem_of, nearest_folder

MOUNTS = r"""22 1 254:0 / / rw,relatime - ext4 /dev/vda rw
40 22 0:31 / /home rw - nfs4 server:/home rw
41 40 0:32 / /home/me/big\040disk rw - xfs /dev/vdb rw
42 22 0:33 / /tmp rw - tmpfs tmpfs rw,size=65536k
"""


def test_a_missing_folder_is_measured_at_its_nearest_parent(tmp_path):
    disk = disk_at("cache", tmp_path / "not" / "yet" / "there")
    room = os.statvfs(tmp_path)
    assert disk.total_bytes == room.f_blocks * room.f_frsize
    assert disk.path == str(tmp_path.resolve() / "not" / "yet" / "there")
    assert nearest_folder(tmp_path / "not" / "yet") == tmp_path


def test_a_file_in_the_way_is_not_writable(tmp_path):
    (tmp_path / "file").touch()
    assert not disk_at("cache", tmp_path / "file" / "hub").is_writable
    assert disk_at("cache", tmp_path / "hub").is_writable


def test_a_link_is_followed_to_where_the_bytes_go(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    assert disk_at("output", tmp_path / "link").path == str((tmp_path / "real").resolve())


def test_the_deepest_mount_names_the_file_system():
    assert filesystem_of(Path("/home/me/big disk/models"), MOUNTS) == "xfs"
    assert filesystem_of(Path("/home/me"), MOUNTS) == "nfs4"
    assert filesystem_of(Path("/tmp"), MOUNTS) == "tmpfs"
    assert filesystem_of(Path("/tmpfile"), MOUNTS) == "ext4"
    assert filesystem_of(Path("/x"), "") == ""
