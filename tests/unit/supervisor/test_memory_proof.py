"""Out-of-memory kills, from counters laid out as real systems show them."""

import os
from pathlib import Path

import pytest

from holdfast.supervisor import memory_proof
from holdfast.supervisor.memory_proof import MemoryMark

V1 = "33 31 0:28 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
V2 = "24 31 0:22 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n"
STAT = "({name}) S 1 41 41 0 -1 4194304 0 0 0 0 0 0 0 0 20 0 1 0 100"


@pytest.fixture(autouse=True)
def no_kernel_log(monkeypatch):
    monkeypatch.setattr(memory_proof, "_KERNEL_LOG", "/nonexistent")


def lay_out(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def process(pid: int, membership: str) -> dict[str, str]:
    return {f"proc/{pid}/cgroup": membership, f"proc/{pid}/stat": f"{pid} {STAT.format(name='python')}"}


def v1(root: Path, kills: int = 0, system: int = 0, **more: str) -> None:
    group = "sys/fs/cgroup/memory/job"
    lay_out(
        root,
        {
            "proc/self/mountinfo": V1,
            **process(os.getpid(), "4:memory:/\n"),
            **process(41, "4:memory:/job\n"),
            "proc/vmstat": f"pgfault 7\noom_kill {system}\n",
            "sys/fs/cgroup/memory/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 0\n",
            f"{group}/memory.oom_control": f"oom_kill_disable 0\nunder_oom 0\noom_kill {kills}\n",
            f"{group}/memory.limit_in_bytes": "4000000000\n",
            f"{group}/memory.max_usage_in_bytes": "3999000000\n",
            **more,
        },
    )


def test_oom_kill_in_child_cgroup_is_counted_with_limit(tmp_path):
    v1(tmp_path)
    mark = MemoryMark(tmp_path)
    mark.see(41)
    v1(tmp_path, kills=1, system=1)
    proof = mark.proof({41})
    assert proof.has_kill
    assert proof.lines() == ["oom_kill +1 in cgroup /sys/fs/cgroup/memory/job, limit 4.0 GB, peak 4.0 GB"]


def test_kills_before_the_attempt_do_not_count(tmp_path):
    v1(tmp_path, kills=3, system=9)
    mark = MemoryMark(tmp_path)
    mark.see(41)
    proof = mark.proof()
    assert not proof.has_kill
    assert proof.could_be_asked
    assert proof.lines() == [
        "no OOM kill counted in cgroup /sys/fs/cgroup/memory/job, limit 4.0 GB, peak 4.0 GB nor in the whole system"
    ]


def test_oom_kill_elsewhere_is_not_ours(tmp_path):
    v1(tmp_path)
    mark = MemoryMark(tmp_path)
    mark.see(41)
    v1(tmp_path, system=2)
    proof = mark.proof()
    assert not proof.has_kill
    group = "cgroup /sys/fs/cgroup/memory/job, limit 4.0 GB, peak 4.0 GB"
    assert proof.lines() == [f"no OOM kill counted in {group}; 2 of other processes"]


def test_system_oom_kills_exclude_other_processes(tmp_path, monkeypatch):
    lay_out(tmp_path, {"proc/vmstat": "oom_kill 0\n"})
    mark = MemoryMark(tmp_path)
    lay_out(tmp_path, {"proc/vmstat": "oom_kill 1\n"})
    assert mark.proof({41}).lines() == ["oom_kill +1 in the whole system, and no cgroup says whose"]
    killed = "Memory cgroup out of memory: Killed process 7 (python)"
    monkeypatch.setattr(memory_proof, "_read_kernel_log", lambda: [(5, killed)])
    assert not mark.proof({41}).has_kill
    assert mark.proof({41}).lines() == ["no OOM kill counted; 1 of other processes"]
    assert mark.proof({7}).lines()[-1] == f"kernel log: {killed}"


def test_a_process_that_is_leaving_does_not_change_the_group(tmp_path):
    v1(tmp_path)
    mark = MemoryMark(tmp_path)
    mark.see(41)
    v1(tmp_path, kills=1, **{"proc/41/cgroup": "4:memory:/\n", "proc/41/stat": "41 (python) Z 1 41 41 0 -1 4 0"})
    mark.see(41)
    assert "in cgroup /sys/fs/cgroup/memory/job" in mark.proof().lines()[0]


def test_cgroup_with_disabled_oom_killer_is_out_of_memory(tmp_path):
    v1(tmp_path)
    mark = MemoryMark(tmp_path)
    mark.see(41)
    v1(tmp_path, **{"sys/fs/cgroup/memory/job/memory.oom_control": "oom_kill_disable 1\nunder_oom 1\noom_kill 0\n"})
    assert "its OOM killer is switched off" in mark.proof().lines()[0]


def test_version_2_finds_the_limit_above(tmp_path):
    def write(kills: int) -> None:
        lay_out(
            tmp_path,
            {
                "proc/self/mountinfo": V2,
                **process(os.getpid(), "0::/\n"),
                **process(41, "0::/pod/job\n"),
                "proc/vmstat": f"oom_kill {kills}\n",
                "sys/fs/cgroup/pod/job/memory.events": f"low 0\nmax 3\noom 1\noom_kill {kills}\noom_group_kill 0\n",
                "sys/fs/cgroup/pod/job/memory.max": "max\n",
                "sys/fs/cgroup/pod/memory.max": "2000000000\n",
                "sys/fs/cgroup/pod/job/memory.peak": "1990000000\n",
            },
        )

    write(0)
    mark = MemoryMark(tmp_path)
    mark.see(41)
    write(2)
    assert mark.proof().lines() == ["oom_kill +2 in cgroup /sys/fs/cgroup/pod/job, limit 2.0 GB, peak 2.0 GB"]


def test_a_machine_without_counters_rules_nothing_out(tmp_path):
    proof = MemoryMark(tmp_path).proof()
    assert not proof.could_be_asked
    assert proof.lines() == []
