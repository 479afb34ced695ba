"""How far an attempt is, from the pages of its processes; of ranks that are gone, where they were."""

import pytest

from holdfast.core.heartbeat import BeatWriter
from holdfast.core.runfolder import BEATS
from holdfast.supervisor import beats
from holdfast.supervisor.beats import Beats
from holdfast.supervisor.processes import TreeSample
from tests.unit.supervisor.samples import process


def tree(*pids: int) -> TreeSample:
    return TreeSample(at_seconds=0.0, processes=tuple(process(pid) for pid in pids))


@pytest.mark.parametrize(("root", "phase"), [("torchrun train.py", "step"), ("bash stages.sh", "start")])
def test_a_launcher_whose_ranks_are_gone_is_where_they_were(tmp_path, monkeypatch, root, phase):
    monkeypatch.setattr(beats, "read_command_line", lambda pid: root if pid == 30 else "python train.py")
    monkeypatch.setattr(beats, "read_variable", lambda pid, name: None)
    (tmp_path / BEATS).mkdir()
    for pid in (31, 32):
        BeatWriter(tmp_path / BEATS / str(pid)).enter("step", 7, 9)
    watched = Beats(tmp_path, 30)
    before = watched.read(tree(30, 31, 32))
    assert (before.phase, before.step, before.steps, before.fronts) == ("step", 7, 9, (31, 32))
    after = watched.read(tree(30))
    assert after.phase == phase
    assert after.budget_phase == "unknown"  # what it may do now is not for the limits of a step to say
