"""MPS's compiled graphs are freed once they fill too much memory."""

from types import SimpleNamespace

import torch

from holdfast.engine.fast import graph_cache
from holdfast.engine.fast.graph_cache import GraphCache

GB = 1 << 30


def test_graphs_are_freed_by_a_memory_mark(monkeypatch):
    held, cleared = [4 * GB], []
    process = SimpleNamespace(memory_info=lambda: SimpleNamespace(rss=held[0]))
    monkeypatch.setattr(graph_cache.psutil, "Process", lambda: process)
    monkeypatch.setattr(torch.mps, "driver_allocated_memory", lambda: GB)
    monkeypatch.setattr(torch.mps, "clear_graph_cache", lambda: cleared.append(held[0]), raising=False)
    cache = GraphCache()
    for step in range(500):
        held[0] = 4 * GB + step * GB // 50  # a gigabyte in 50 steps
        if cleared:
            held[0] = 4 * GB
        cache.after_step(step)
    assert cleared == [7 * GB]


def test_torch_that_cannot_free_graphs_is_left_alone():
    GraphCache().after_step(0)
