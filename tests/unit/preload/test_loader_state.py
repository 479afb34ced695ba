"""A data loader goes on with the next batch of the order it was in."""

import pytest
import torch
from holdfast_preload import loader_state
from torch.utils.data import DataLoader
from torch.utils.data.dataloader import DataLoader as Plain


@pytest.fixture
def recorded(monkeypatch):
    monkeypatch.setattr(loader_state, "is_recorded", True)
    monkeypatch.setattr(loader_state, "pending", [])


def make(loader):
    return Plain.__iter__(loader)


def batches(iterator):
    taken = []
    while True:
        loader_state.first_batch(iterator)
        try:
            taken.append(next(iterator).tolist())
        except StopIteration:
            return taken


def loader():
    return DataLoader(list(range(20)), batch_size=3, shuffle=True)


def test_loader_resumes_in_the_middle_of_an_epoch(recorded, tmp_path):
    torch.manual_seed(5)
    first = loader()
    iterator = loader_state.made(first, make)
    torch.rand(3)  # somebody draws between the making and the first batch
    loader_state.first_batch(iterator)
    seen = [next(iterator).tolist() for _ in range(2)]
    torch.rand(7)
    loader_state.write(str(tmp_path / "order"), [loader_state.where(first)])
    rest, draw = batches(iterator), torch.rand(1)

    torch.manual_seed(99)
    again = loader()
    loader_state.pending.append((lambda asked: 0 if asked is again else -1, loader_state.read(str(tmp_path / "order"))))
    iterator = loader_state.made(again, make)
    assert batches(iterator) == rest
    assert torch.rand(1) == draw
    assert sorted(row for batch in seen + rest for row in batch) == list(range(20))


def test_loader_resumes_after_the_last_batch(recorded):
    torch.manual_seed(5)
    first = loader()
    batches(loader_state.made(first, make))
    state = loader_state.where(first)
    following = batches(loader_state.made(first, make))
    torch.manual_seed(99)
    again = loader()
    loader_state.pending.append((lambda asked: 0 if asked is again else -1, [state]))
    assert batches(loader_state.made(again, make)) == following


def test_truncated_file_is_not_a_state(tmp_path):
    (tmp_path / "order").write_bytes(b"\x80\x04\x95")
    assert loader_state.read(str(tmp_path / "order")) == []
    assert loader_state.read(str(tmp_path / "gone")) == []
