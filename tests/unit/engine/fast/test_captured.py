"""Rows of a captured step: every text is there, and what fills up is read by nobody."""

import numpy as np
import torch

from holdfast.engine.fast.captured import row_pack, step_row
from holdfast.engine.fast.packing import Pack
from holdfast.engine.tasks import load_task
from holdfast.engine.towers import _means
from tests.tiny import tiny_bert, tiny_questions
from tests.unit.engine.test_parity import settings_for


def test_step_row_has_texts_with_own_positions():
    arrays = step_row([np.array([7, 8, 9]), np.array([5])], offset=2, idle=2)
    assert len(arrays["ids"]) == len(arrays["positions"]) == 512
    assert arrays["ids"][:6].tolist() == [7, 8, 9, 5, 0, 0]
    assert arrays["positions"][:6].tolist() == [2, 3, 4, 2, 2, 2]
    assert arrays["bounds"].tolist() == [0, 3, 4, 5, 6, 512]
    texts = row_pack({name: torch.from_numpy(array) for name, array in arrays.items()}, longest=3)
    assert texts.first_B.tolist() == [0, 3, 4, 5]
    assert texts.longest == 512, "as long as the text that fills up may be"


def test_matrix_product_means_equal_segment_means():
    hidden = torch.randn(9, 4)
    bounds = torch.tensor([0, 3, 4, 9], dtype=torch.int32)
    found = _means(hidden, Pack(hidden, hidden, [], bounds[:2], bounds))
    assert torch.allclose(found, torch.stack([hidden[:3].mean(0), hidden[3]]))


def test_two_tower_steps_have_few_sizes(tmp_path):
    parts = tiny_bert(tmp_path / "model"), tiny_questions(tmp_path / "prepared")
    task = load_task(settings_for("two-tower", *parts, tmp_path, options={"mining": {"negatives": 2}}))
    draws = np.random.default_rng(0)
    sizes = set()
    for step in range(5):
        examples = draws.permutation(96)[:8]
        arrays = task.step_arrays(step, examples)
        sizes.add(tuple(map(len, arrays.values())))
        passages = task._passages(step, examples)
        allowed = arrays["allowed"].reshape(8, -1)
        assert allowed.shape == (8, 8 * (1 + 1 + 2))
        assert (allowed[:, : len(passages.rows_P)] == passages.allowed_BP).all()
        assert not allowed[:, len(passages.rows_P) :].any()
        assert len(arrays["bounds"]) == 8 + allowed.shape[1] + 2
    assert len(sizes) <= 2


def test_oversized_step_has_no_graph_arrays(tmp_path):
    parts = tiny_bert(tmp_path / "model"), tiny_questions(tmp_path / "prepared")
    task = load_task(settings_for("two-tower", *parts, tmp_path, micro_tokens=50))
    assert task.step_arrays(0, np.arange(8)) is None
