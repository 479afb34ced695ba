"""A data loader goes on with the next batch of the order it was in."""

import pytest
import torch
from holdfast_preload import order
from torch.utils.data import DataLoader
from torch.utils.data.dataloader import DataLoader as Plain


@pytest.fixture
def recorded(monkeypatch):
    monkeypatch.setattr(order, "is_recorded", True)
    monkeypatch.setattr(order, "pending", [])


def make(loader):
    return Plain.__iter__(loader)


def batches(iterator):
    taken = []
    while True:
        order.first_batch(iterator)
        try:
            taken.append(next(iterator).tolist())
        except StopIteration:
            return taken


def loader():
    return DataLoader(list(range(20)), batch_size=3, shuffle=True)


def test_in_the_middle_of_an_epoch(recorded, tmp_path):
    torch.manual_seed(5)
    first = loader()
    iterator = order.made(first, make)
    torch.rand(3)  # somebody draws between the making and the first batch
    order.first_batch(iterator)
    seen = [next(iterator).tolist() for _ in range(2)]
    torch.rand(7)
    order.write(str(tmp_path / "order"), [order.where(first)])
    rest, draw = batches(iterator), torch.rand(1)

    torch.manual_seed(99)
    again = loader()
    order.pending.append((lambda asked: 0 if asked is again else -1, order.read(str(tmp_path / "order"))))
    iterator = order.made(again, make)
    assert batches(iterator) == rest
    assert torch.rand(1) == draw
    assert sorted(row for batch in seen + rest for row in batch) == list(range(20))


def test_after_the_last_batch_the_next_epoch_begins(recorded):
    torch.manual_seed(5)
    first = loader()
    batches(order.made(first, make))
    state = order.where(first)
    following = batches(order.made(first, make))
    torch.manual_seed(99)
    again = loader()
    order.pending.append((lambda asked: 0 if asked is again else -1, [state]))
    assert batches(order.made(again, make)) == following


def test_a_cut_off_file_is_no_state(tmp_path):
    (tmp_path / "order").write_bytes(b"\x80\x04\x95")
    assert order.read(str(tmp_path / "order")) == []
    assert order.read(str(tmp_path / "gone")) == []
