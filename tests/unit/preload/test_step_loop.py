"""`holdfast.steps` without `holdfast run`: a range, or a loop that continues from the folder it is given."""

import subprocess
import sys

import pytest

import holdfast

torch = pytest.importorskip("torch")


def make_parts():
    torch.manual_seed(0)
    model = torch.nn.Linear(2, 1)
    return model, torch.optim.AdamW(model.parameters())


def train(model, optimizer, folder, last=100, total=10, bad_from=100):
    """Train to the end, or give up after some steps like a script that is killed there; return the steps done."""
    done = []
    for step in holdfast.steps(model, optimizer, total, folder=folder and str(folder), save_seconds=0):
        done.append(step)
        loss = model(torch.rand(3, 2)).square().mean()
        (loss * float("nan") if step >= bad_from else loss).backward()
        optimizer.step()
        optimizer.zero_grad()
        if step == last:
            break
    return done


def test_without_folder_steps_are_a_range(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "stop").touch()  # a file of the user's
    assert train(*make_parts(), None) == list(range(10))
    assert [path.name for path in tmp_path.iterdir()] == ["stop"]


def test_loop_with_folder_continues_exactly(tmp_path):
    unbroken = make_parts()
    train(*unbroken, tmp_path / "one")
    train(*make_parts(), tmp_path / "two", last=6)
    resumed = make_parts()
    assert train(*resumed, tmp_path / "two") == [6, 7, 8, 9]  # the step that did not end is done again
    assert torch.equal(resumed[0].weight, unbroken[0].weight)
    assert train(*make_parts(), tmp_path / "two") == []


def test_damaged_checkpoint_falls_back_to_the_one_before(tmp_path):
    train(*make_parts(), tmp_path, last=6)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-5", "step-6"]
    newest = tmp_path / "step-6" / "state.pt"
    newest.write_bytes(newest.read_bytes()[:-1])
    assert train(*make_parts(), tmp_path)[0] == 5


def test_nan_weights_are_never_saved(tmp_path):
    train(*make_parts(), tmp_path, last=6, bad_from=4)
    assert train(*make_parts(), tmp_path)[0] == 4


def test_part_without_state_is_refused():
    model, optimizer = make_parts()
    with pytest.raises(TypeError, match="int"):
        holdfast.steps(model, optimizer, 10, 5)


def test_importing_holdfast_imports_no_library():
    code = "import sys, holdfast; print(sorted({'torch', 'msgspec', 'click', 'holdfast_preload'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "[]\n"
