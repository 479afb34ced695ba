"""Control-group limits, from trees laid out as real systems show them."""

from pathlib import Path

import pytest

from holdfast.core.cgroups import read_mounts, unescape
from holdfast.machine.resources import cpu_quota, memory_limit, memory_room

V2_MOUNT = "24 31 0:22 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n"
V1_MOUNTS = (
    "33 31 0:28 {shows} /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
    "34 31 0:29 {shows} /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"
)
NO_LIMIT_V1 = "9223372036854771712"


@pytest.fixture
def lay_out(tmp_path):
    def write(files: dict[str, str]) -> Path:
        for name, text in files.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return tmp_path

    return write


def test_a_container_sees_its_own_limit_at_the_root(lay_out):
    root = lay_out(
        {
            "proc/self/mountinfo": V2_MOUNT,
            "proc/self/cgroup": "0::/\n",
            "sys/fs/cgroup/memory.max": "2147483648\n",
            "sys/fs/cgroup/cpu.max": "150000 100000\n",
        }
    )
    assert memory_limit(root) == (2147483648, "/sys/fs/cgroup/memory.max")
    assert cpu_quota(root) == (1.5, "/sys/fs/cgroup/cpu.max")


def test_the_smallest_limit_of_all_parents_counts(lay_out):
    root = lay_out(
        {
            "proc/self/mountinfo": V2_MOUNT,
            "proc/self/cgroup": "0::/user.slice/user-1000.slice/app.scope\n",
            "sys/fs/cgroup/user.slice/user-1000.slice/app.scope/memory.max": "max\n",
            "sys/fs/cgroup/user.slice/user-1000.slice/memory.max": "8000000000\n",
            "sys/fs/cgroup/user.slice/memory.max": "16000000000\n",
            "sys/fs/cgroup/user.slice/user-1000.slice/app.scope/cpu.max": "max 100000\n",
        }
    )
    assert memory_limit(root) == (8000000000, "/sys/fs/cgroup/user.slice/user-1000.slice/memory.max")
    assert cpu_quota(root) is None


def test_cgroup_v1_host_path_in_a_container(lay_out):
    root = lay_out(
        {
            "proc/self/mountinfo": V1_MOUNTS.format(shows="/docker/abc"),
            "proc/self/cgroup": "4:memory:/docker/abc\n1:cpu,cpuacct:/docker/abc\n0::/system.slice\n",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": "1073741824",
            "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "50000",
            "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000",
        }
    )
    assert memory_limit(root) == (1073741824, "/sys/fs/cgroup/memory/memory.limit_in_bytes")
    assert cpu_quota(root) == (0.5, "/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us")


def test_version_1_writes_no_limit_as_huge_numbers(lay_out):
    root = lay_out(
        {
            "proc/self/mountinfo": V1_MOUNTS.format(shows="/"),
            "proc/self/cgroup": "4:memory:/job\n1:cpu,cpuacct:/\n",
            "sys/fs/cgroup/memory/job/memory.limit_in_bytes": NO_LIMIT_V1,
            "sys/fs/cgroup/memory/memory.limit_in_bytes": NO_LIMIT_V1,
            "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "-1",
            "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000",
        }
    )
    assert memory_limit(root) is None
    assert cpu_quota(root) is None


def test_cached_files_count_as_room(lay_out):
    root = lay_out(
        {
            "proc/self/mountinfo": V2_MOUNT,
            "proc/self/cgroup": "0::/\n",
            "sys/fs/cgroup/memory.max": "1000\n",
            "sys/fs/cgroup/memory.current": "900\n",
            "sys/fs/cgroup/memory.stat": "anon 500\ninactive_file 300\nactive_file 100\n",
        }
    )
    assert memory_room(root) == 400


def test_version_1_counts_cached_files_of_the_groups_below(lay_out):
    root = lay_out(
        {
            "proc/self/mountinfo": V1_MOUNTS.format(shows="/"),
            "proc/self/cgroup": "4:memory:/\n",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": "1000\n",
            "sys/fs/cgroup/memory/memory.usage_in_bytes": "900\n",
            "sys/fs/cgroup/memory/memory.stat": "inactive_file 10\ntotal_inactive_file 300\n",
        }
    )
    assert memory_room(root) == 400


def test_a_system_without_control_groups_has_no_limits(tmp_path):
    assert memory_limit(tmp_path) is None
    assert memory_room(tmp_path) is None
    assert cpu_quota(tmp_path) is None


def test_mount_tables_escape_spaces():
    assert unescape(r"/mnt/my\040disk") == "/mnt/my disk"
    assert read_mounts(r"24 31 0:22 / /sys\040x rw - cgroup2 none rw")[0].at == "/sys x"
    assert read_mounts("not a mount line\n1 2 3") == []
