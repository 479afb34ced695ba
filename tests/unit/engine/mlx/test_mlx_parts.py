"""The parts of the MLX backend: rows, dropout, AdamW, the table of used rows."""

import numpy as np
import pytest
import torch

from holdfast.engine.batches import BatchPart

mx = pytest.importorskip("mlx.core")

from holdfast.engine.mlx.mlx_adamw import NamedAdamW, clipped, norm_of  # noqa: E402  (after the question above)
from holdfast.engine.mlx.mlx_dropout import StepMasks  # noqa: E402
from holdfast.engine.mlx.text_rows import bucket_of, pack_rows  # noqa: E402


def part_of(lengths: list[int], places: list[int] | None = None) -> BatchPart:
    starts = np.cumsum([0, *lengths[:-1]])
    at = np.arange(len(lengths)) if places is None else np.array(places)
    return BatchPart(at, at, starts)


def test_tokens_in_rows_see_their_own_text():
    texts = [np.arange(1, length + 1) + 100 * at for at, length in enumerate((5, 40, 64, 3, 20))]
    rows = pack_rows(texts, part_of([len(text) for text in texts]))
    ids, owners = np.array(rows.ids_RT), np.array(rows.texts_RT)
    assert ids.shape == (3, 64)
    for at, text in enumerate(texts):
        assert ids[owners == at + 1].tolist() == text.tolist()
        assert ids.ravel()[int(rows.first_B[at])] == text[0]
    seen = np.array(rows.seen())[:, 0]
    assert (seen == (owners[:, :, None] == owners[:, None, :])).all()


def test_many_lengths_make_few_shapes():
    draws = np.random.default_rng(0)
    shapes = set()
    for _ in range(300):
        lengths = draws.integers(3, 500, draws.integers(1, 33)).tolist()
        rows = pack_rows([np.ones(length, dtype=np.int32) for length in lengths], part_of(lengths))
        shapes.add((rows.ids_RT.shape, rows.first_B.shape))
        assert rows.ids_RT.size <= 3 * sum(lengths) + 512
    assert len(shapes) <= 60


def test_buckets_add_less_than_a_third():
    buckets = [bucket_of(count) for count in range(1, 200)]
    assert all(count <= found <= max(1, 1.5 * count) for count, found in enumerate(buckets, start=1))
    assert len(set(buckets)) <= 16


def test_dropout_depends_on_the_place_in_the_step_alone():
    texts = [np.full(length, length) for length in (7, 30, 12)]
    whole = pack_rows(texts, part_of([7, 30, 12]))
    alone = pack_rows(texts[1:2], BatchPart(np.array([1]), np.array([1]), np.array([7])))
    for step in (3, 4):
        kept = []
        for rows, text in ((whole, 2), (alone, 1)):
            masks = StepMasks(42, step, rows)
            values = np.array(masks.tokens(mx.ones((*rows.ids_RT.shape, 5)), 0.3, 2))
            weights = np.array(masks.attention(mx.ones((rows.ids_RT.shape[0], 2, 64, 64)), 0.3, 2))
            own = np.array(rows.texts_RT) == text
            row, columns = np.flatnonzero(own.any(1))[0], np.flatnonzero(own.any(0))
            kept.append((values[own], weights[row][:, columns][:, :, columns]))
        np.testing.assert_array_equal(kept[0][0], kept[1][0])
        np.testing.assert_array_equal(kept[0][1], kept[1][1])
        assert abs((kept[0][1] > 0).mean() - 0.7) < 0.05
        np.testing.assert_allclose(np.unique(kept[0][0]), [0, 1 / 0.7], rtol=1e-6)
    by_step = [np.array(StepMasks(42, step, whole).texts(mx.ones((3, 64)), 0.5, 9)) for step in (3, 4)]
    assert (by_step[0] != by_step[1]).any()


def test_masks_of_neighbors_are_unrelated():
    rows = pack_rows([np.ones(64, dtype=np.int32)] * 32, part_of([64] * 32))
    kept = np.array(StepMasks(1, 1, rows).tokens(mx.ones((*rows.ids_RT.shape, 128)), 0.5, 0)) > 0
    bits = kept.reshape(-1, 128) - 0.5
    for other in (bits[1:], np.roll(bits, 1, 1)[1:]):
        assert abs((bits[:-1] * other).mean() * 4) < 0.01
    assert np.abs(bits.mean(0)).max() < 0.05
    assert np.abs(bits.mean(1)).max() < 0.25


def test_adamw_and_clipping_are_those_of_torch():
    draws = np.random.default_rng(0)
    start = {"w": draws.normal(size=(4, 3)), "b": draws.normal(size=3)}
    theirs = {name: torch.nn.Parameter(torch.tensor(value, dtype=torch.float32)) for name, value in start.items()}
    groups = [{"params": [theirs["w"]], "weight_decay": 0.1}, {"params": [theirs["b"]], "weight_decay": 0.0}]
    optimizer, own = torch.optim.AdamW(groups, lr=1.0), NamedAdamW(0.1)
    weights = {name: mx.array(value.astype(np.float32)) for name, value in start.items()}
    for step in range(5):
        gradients = {name: draws.normal(size=value.shape).astype(np.float32) for name, value in start.items()}
        for name, weight in theirs.items():
            weight.grad = torch.tensor(gradients[name])
        norm = torch.nn.utils.clip_grad_norm_(theirs.values(), 1.0)
        for group in optimizer.param_groups:
            group["lr"] = 0.01 * (step + 1)
        optimizer.step()
        found = {name: mx.array(value) for name, value in gradients.items()}
        assert norm_of(found).item() == pytest.approx(float(norm), rel=1e-6)
        weights = own.updated(weights, clipped(found, norm_of(found).item(), 1.0), 0.01 * (step + 1))
    for name, weight in theirs.items():
        np.testing.assert_allclose(np.array(weights[name]), weight.detach().numpy(), rtol=1e-5, atol=1e-7)
        state = optimizer.state[weight]
        for key in ("exp_avg", "exp_avg_sq", "step"):
            np.testing.assert_allclose(np.array(own.tensors()[f"{name}/{key}"]), state[key].numpy(), rtol=1e-5)


def test_norm_of_many_values_is_exact():
    values = np.random.default_rng(0).normal(size=(9000, 384)).astype(np.float32)
    assert norm_of({"w": mx.array(values)}).item() == pytest.approx(
        float(np.linalg.norm(values.astype(float))), rel=2e-6
    )
