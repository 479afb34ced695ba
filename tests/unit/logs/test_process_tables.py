"""Tables of processes and profiles that people paste next to a hang."""

import os
import shutil
import subprocess

import pytest

from holdfast.hazards.diagnose import diagnose
from holdfast.logs.log_text import read_evidence

SELF = str(os.getpid())


@pytest.mark.parametrize("command", [["ps", "u", "-p", SELF], ["top", "-b", "-n", "1", "-p", SELF]], ids=["ps", "top"])
def test_rows_of_the_real_tools_are_read(command):
    if not shutil.which(command[0]):
        pytest.skip(f"{command[0]} is not installed")
    table = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "LC_ALL": "C"}).stdout
    rows = read_evidence(table).processes
    assert [row.pid for row in rows] == [os.getpid()]
    assert rows[0].state[0] in "RSD"


def test_shares_of_a_perf_report():
    report = (
        "# Overhead  Command  Shared Object      Symbol\n"
        "    60.00%  python   libgomp.so.1       [.] gomp_barrier_wait_end\n"
        "    10.50%  python   [kernel.kallsyms]  [k] futex_wait\n"
    )
    spots = read_evidence(report).hotspots
    assert [(spot.function, spot.share) for spot in spots] == [("gomp_barrier_wait_end", 0.6), ("futex_wait", 0.105)]


def test_seconds_of_vtune_become_shares():
    report = "__kmp_fork_barrier  libiomp5.so  30.0s\nsgemm_kernel        libmkl_avx2.so  10.0s\n"
    assert [spot.share for spot in read_evidence(report).hotspots] == [0.75, 0.25]


def test_working_threads_are_not_waiting_ones():
    busy = "    80.00%  python   libtorch_cpu.so  [.] at::native::mm\n     9.00%  python   libgomp.so.1  [.] do_wait\n"
    assert diagnose(read_evidence(busy, "hang")).slug == "unknown"


def test_as_many_threads_as_usual_are_left_alone():
    assert diagnose(read_evidence("CPU(s): 16\nThreads: 70 total\n", "hang")).slug == "unknown"
    assert diagnose(read_evidence("CPU(s): 4\nThreads: 70 total\n", "hang")).slug == "thread-oversubscription"


def test_ordinary_lines_are_neither_rows_nor_profiles():
    log = "Epoch 1  45.2%  loss 0.3\n  12 jobs R 3 done\nstep 40 took 3.1s\n"
    evidence = read_evidence(log)
    assert not evidence.processes
    assert not evidence.hotspots
