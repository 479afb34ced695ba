"""Out-of-memory kills, from counters laid out as real systems show them."""

import os
from pathlib import Path

import pytest

from holdfast.core.event_log import EventLog
from holdfast.core.events import TreeSampled
from holdfast.core.observations import KernelKill, NoOomKill, OomKill, OomKillerOff
from holdfast.supervisor import memory_proof
from holdfast.supervisor.memory_proof import MemoryMark, find_memory_use, last_resident_bytes

V1 = "33 31 0:28 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
V2 = "24 31 0:22 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n"
STAT = "({name}) S 1 41 41 0 -1 4194304 0 0 0 0 0 0 0 0 20 0 1 0 100"


JOB = {"cgroup": "/sys/fs/cgroup/memory/job", "limit_bytes": 4_000_000_000, "peak_bytes": 3_999_000_000}


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
    assert proof.observations() == [OomKill(kills=1, **JOB)]


def test_kills_before_the_attempt_do_not_count(tmp_path):
    v1(tmp_path, kills=3, system=9)
    mark = MemoryMark(tmp_path)
    mark.see(41)
    proof = mark.proof()
    assert not proof.has_kill
    assert proof.could_be_asked
    asked = NoOomKill(cgroups=("/sys/fs/cgroup/memory/job",), limit_bytes=4_000_000_000, is_system_asked=True)
    assert proof.observations() == [asked]


def test_oom_kill_elsewhere_is_not_ours(tmp_path):
    v1(tmp_path)
    mark = MemoryMark(tmp_path)
    mark.see(41)
    v1(tmp_path, system=2)
    proof = mark.proof()
    assert not proof.has_kill
    (asked,) = proof.observations()
    assert (asked.cgroups, asked.is_system_asked, asked.other_kills) == (("/sys/fs/cgroup/memory/job",), False, 2)


def test_system_oom_kills_exclude_other_processes(tmp_path, monkeypatch):
    lay_out(tmp_path, {"proc/vmstat": "oom_kill 0\n"})
    mark = MemoryMark(tmp_path)
    lay_out(tmp_path, {"proc/vmstat": "oom_kill 1\n"})
    assert mark.proof({41}).observations() == [OomKill(kills=1)]
    killed = "Memory cgroup out of memory: Killed process 7 (python)"
    monkeypatch.setattr(memory_proof, "_read_kernel_log", lambda: [(5, killed)])
    assert not mark.proof({41}).has_kill
    assert mark.proof({41}).observations() == [NoOomKill(other_kills=1)]
    assert mark.proof({7}).observations()[-1] == KernelKill(text=killed, pid=7, name="python")


def test_exiting_process_does_not_change_the_group(tmp_path):
    v1(tmp_path)
    mark = MemoryMark(tmp_path)
    mark.see(41)
    v1(tmp_path, kills=1, **{"proc/41/cgroup": "4:memory:/\n", "proc/41/stat": "41 (python) Z 1 41 41 0 -1 4 0"})
    mark.see(41)
    assert mark.proof().observations()[0].cgroup == "/sys/fs/cgroup/memory/job"


def test_cgroup_with_disabled_oom_killer_is_out_of_memory(tmp_path):
    v1(tmp_path)
    mark = MemoryMark(tmp_path)
    mark.see(41)
    v1(tmp_path, **{"sys/fs/cgroup/memory/job/memory.oom_control": "oom_kill_disable 1\nunder_oom 1\noom_kill 0\n"})
    assert mark.proof().observations()[0] == OomKillerOff(**JOB)


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
    (kill,) = mark.proof().observations()
    assert (kill.kills, kill.cgroup, kill.limit_bytes) == (2, "/sys/fs/cgroup/pod/job", 2_000_000_000)
    assert kill.peak_bytes == 1_990_000_000


def test_no_memory_kill_is_ruled_out_without_counters(tmp_path):
    proof = MemoryMark(tmp_path).proof()
    assert not proof.could_be_asked
    assert proof.observations() == []


def write_samples(folder: Path, sizes: list[int]) -> None:
    log = EventLog(folder / "samples.jsonl")
    for at, size in enumerate(sizes):
        log.write(TreeSampled(phase="step", step=10 * at, resident_bytes=size))
    with (folder / "samples.jsonl").open("a") as file:
        file.write('{"half a li')


def test_a_steady_run_has_no_growth(tmp_path):
    write_samples(tmp_path, [2_000_000_000] * 10)
    (use,) = find_memory_use(tmp_path)
    assert (use.last_bytes, use.peak_bytes, use.growth_per_step) == (2_000_000_000, 2_000_000_000, 0.0)


def test_a_leak_is_reported_with_its_growth(tmp_path):
    write_samples(tmp_path, [1_000_000_000 * (1 + at) for at in range(12)])
    (use,) = find_memory_use(tmp_path)
    assert (use.growth_per_step, use.since_step) == (100_000_000.0, 60)


def test_without_samples_the_memory_is_unknown(tmp_path):
    assert find_memory_use(tmp_path) == []
    assert last_resident_bytes(tmp_path) is None
