"""What a machine remembers of what worked."""

from holdfast.runs.memory import Memory, key_of


def test_what_worked_is_found_again_and_forgotten_on_demand(tmp_path):
    memory = Memory(tmp_path, "this machine")
    key = key_of("command", "/home/user", "python", "train.py")
    assert memory.find(key) is None
    memory.remember(key, "python train.py", {"loader_workers": 0}, 2)
    assert memory.find(key).changes == {"loader_workers": 0}
    assert memory.forget("other.py") == []
    assert len(memory.forget("train.py")) == 1
    assert memory.find(key) is None


def test_what_other_libraries_proved_is_not_used_here(tmp_path):
    Memory(tmp_path, "torch 2.8").remember("key", "python train.py", {"threads": 1}, 3)
    assert Memory(tmp_path, "torch 2.9").find("key") is None


def test_a_broken_memory_is_no_memory(tmp_path):
    (tmp_path / "memory.json").write_text("{half")
    memory = Memory(tmp_path, "here")
    assert memory.entries() == {}
    memory.remember("key", "python train.py", {}, 1)
    assert memory.find("key")


def test_a_folder_that_cannot_be_written_only_costs_the_memory(tmp_path):
    (tmp_path / "file").touch()
    Memory(tmp_path / "file" / "deeper", "here").remember("key", "python train.py", {}, 1)
