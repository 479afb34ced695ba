"""What a machine remembers of what worked."""

import json
import os
import subprocess
import sys

from holdfast.core.run_memory import RunMemory, key_of


def test_remembered_settings_are_recalled_and_can_be_forgotten(tmp_path):
    memory = RunMemory(tmp_path, "this machine")
    key = key_of("command", "/home/user", "python", "train.py")
    assert memory.find(key) is None
    memory.remember(key, "python train.py", {"loader_workers": 0}, 2)
    assert memory.find(key).changes == {"loader_workers": 0}
    assert memory.forget("other.py") == []
    assert len(memory.forget("train.py")) == 1
    assert memory.find(key) is None


def test_proof_of_other_library_versions_is_not_reused(tmp_path):
    RunMemory(tmp_path, "torch 2.8").remember("key", "python train.py", {"threads": 1}, 3)
    assert RunMemory(tmp_path, "torch 2.9").find("key") is None


def test_broken_memory_file_is_ignored(tmp_path):
    (tmp_path / "memory.json").write_text("{half")
    memory = RunMemory(tmp_path, "here")
    assert memory.entries() == {}
    memory.remember("key", "python train.py", {}, 1)
    assert memory.find("key")


def test_a_folder_that_cannot_be_written_only_costs_the_memory(tmp_path):
    (tmp_path / "file").touch()
    RunMemory(tmp_path / "file" / "deeper", "here").remember("key", "python train.py", {}, 1)


def test_two_processes_that_remember_proofs_at_once_both_keep_theirs(tmp_path):
    """Each reads, adds and writes the whole file: without the lock one entry was lost."""
    code = (
        "import sys; from holdfast.core.facts import ModelFacts; from holdfast.core.records import *;"
        "from holdfast.core.run_memory import remember_proof;"
        "name = sys.argv[1];"
        "[remember_proof(EngineSettings(task=name, model='', prepared='', run='', batch_size=n + 1),"
        " ModelFacts(name='m', folder=''), (TimedCandidate(changes={}, words='', is_chosen=True),), has_longest=False)"
        " for n in range(25)]"
    )
    environment = {**os.environ, "XDG_STATE_HOME": str(tmp_path)}
    processes = [
        subprocess.Popen([sys.executable, "-c", code, name], env=environment) for name in ("classify", "causal")
    ]
    assert [process.wait() for process in processes] == [0, 0]
    file = next(tmp_path.rglob("proofs.json"))
    assert len(json.loads(file.read_text())["entries"]) == 50
