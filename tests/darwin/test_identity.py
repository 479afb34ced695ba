"""Who a process and a machine are on macOS, and that everything ends with its supervisor."""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from msgspec.structs import replace

from holdfast.core.artifacts import flush_to_disk
from holdfast.core.parent_death import call_at_exit_of
from holdfast.core.records import LeaseNotice
from holdfast.runs import lease
from holdfast.supervisor import macos
from holdfast.supervisor.child import Launch, start_child
from holdfast.supervisor.ending import end_tree, send
from holdfast.supervisor.members import boot_id, find_member, find_members
from holdfast.supervisor.processes import Identity, this_system

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="pretends a macOS on Linux")


def test_lease_survives_a_new_host_name(tmp_path, mac, monkeypatch):
    monkeypatch.delenv("HOLDFAST_NODE", raising=False)
    with lease.hold(tmp_path):
        monkeypatch.setattr(socket, "gethostname", lambda: "MacBook-Air.example")
        assert lease.holder(tmp_path) == Identity(os.getpid(), find_member(os.getpid()).start_ticks)
        with pytest.raises(lease.AlreadyHeld):
            lease.take_lease(tmp_path)
    notice = lease.seen_lease(tmp_path, lease.newest_lease(tmp_path)).look()
    assert notice.state == "released"


def test_lease_of_dead_supervisor_is_free_after_renaming(tmp_path, mac, monkeypatch):
    monkeypatch.delenv("HOLDFAST_NODE", raising=False)
    notice = lease.describe_self(LeaseNotice, state="held")
    monkeypatch.setattr(socket, "gethostname", lambda: "MacBook-Air.example")
    assert lease.is_here(notice)
    assert lease.is_here_and_gone(replace(notice, start_ticks=1))


def test_nodes_with_given_names_stay_apart(mac, monkeypatch):
    monkeypatch.setenv("HOLDFAST_NODE", "a")
    notice = lease.describe_self(LeaseNotice, state="held")
    monkeypatch.setenv("HOLDFAST_NODE", "b")
    assert not lease.is_here(notice)


def test_start_of_the_machine_and_its_hardware_are_named(mac, monkeypatch):
    answers = {"IOPlatformExpertDevice": '    "IOPlatformUUID" = "AAAABBBB-0000-5000-8000-CCCCDDDDEEEE"\n'}
    monkeypatch.setattr(macos, "_output", lambda *command: answers.get(command[-1], ""))
    assert boot_id() == "6B1F2C7E-0000-4000-8000-00000000B007"
    assert this_system().hardware_id() == "AAAABBBB-0000-5000-8000-CCCCDDDDEEEE"


def test_signals_reach_exactly_one_process(mac):
    child = subprocess.Popen(["sleep", "60"])
    member = find_member(child.pid)
    assert not send(Identity(child.pid, member.start_ticks + 1), signal.SIGKILL)
    assert send(member.identity, signal.SIGKILL)
    assert child.wait(10) == -signal.SIGKILL


def test_tree_is_found_and_ended(tmp_path, mac):
    command = ("sh", "-c", "sleep 60 & exec sleep 61")
    child = start_child(Launch(command, tmp_path, {"PATH": os.environ["PATH"]}, tmp_path / "attempt"))
    deadline = time.monotonic() + 20
    while len(find_members(tmp_path / "attempt", child.identity)) < 2 and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not end_tree(tmp_path / "attempt", child, 1.0).left
    assert child.poll() is not None


def test_exit_of_another_process_is_noticed_by_the_kernel_queue(mac):
    child, seen = subprocess.Popen(["sleep", "60"]), []
    call_at_exit_of(child.pid, lambda: seen.append(child.pid))
    time.sleep(0.1)
    assert not seen
    child.kill()
    child.wait()
    deadline = time.monotonic() + 10
    while not seen and time.monotonic() < deadline:
        time.sleep(0.02)
    assert seen == [child.pid]


ENGINE = """
import sys, time
sys.path.insert(0, {root!r})
from tests.darwin.pretended import FakeKernelEvent, FakeKernelQueue
import select
select.kqueue, select.kevent = FakeKernelQueue, FakeKernelEvent
select.KQ_FILTER_PROC, select.KQ_EV_ADD, select.KQ_NOTE_EXIT = -5, 1, 0x80000000
sys.platform = "darwin"
from holdfast.core.parent_death import end_with_parent
end_with_parent()
print("armed", flush=True)
time.sleep(60)
"""


def test_engine_ends_with_a_killed_supervisor(tmp_path):
    root = str(Path(__file__).parents[2])
    script = tmp_path / "engine.py"
    script.write_text(ENGINE.format(root=root))
    starts = (
        f"import subprocess, sys\nchild = subprocess.Popen([sys.executable, {str(script)!r}], stdout=sys.stdout)\n"
        "print(child.pid, flush=True)\nchild.wait()"
    )
    supervisor = subprocess.Popen([sys.executable, "-S", "-c", starts], stdout=subprocess.PIPE, text=True)
    pid = int(supervisor.stdout.readline())
    assert supervisor.stdout.readline().strip() == "armed"
    supervisor.kill()
    supervisor.wait()
    deadline = time.monotonic() + 20
    while (member := find_member(pid)) and not member.is_gone and time.monotonic() < deadline:
        time.sleep(0.05)
    supervisor.stdout.close()
    assert member is None or member.is_gone


def test_manifests_reach_the_medium(tmp_path, mac, monkeypatch):
    import fcntl

    asked = []
    monkeypatch.setattr(fcntl, "F_FULLFSYNC", 51, raising=False)
    monkeypatch.setattr(fcntl, "fcntl", lambda file, command: asked.append(command))
    with (tmp_path / "file").open("w") as file:
        flush_to_disk(file.fileno())
    assert asked == [51]
