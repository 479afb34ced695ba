"""Two towers: the losses of a plain loop, one gradient however a step is split, near-misses, and what is exported."""

import json

import numpy as np
import pytest
import torch
from torch.nn import functional
from transformers import AutoModel

from holdfast.core.errors import RequestError
from holdfast.data.shards import open_array, open_tokens
from holdfast.engine.attempt_settings import AttemptSettings
from holdfast.engine.data_order import DataOrder
from holdfast.engine.optim import clip_gradients, make_optimizer
from holdfast.engine.tasks import load_task
from tests.tiny import tiny_bert, tiny_questions, tiny_vectors

MINING = {"from_epoch": 1, "last_rank": 20, "negatives": 2}


@pytest.fixture(scope="module")
def parts(tmp_path_factory):
    folder = tmp_path_factory.mktemp("parts")
    return tiny_bert(folder / "model"), tiny_questions(folder / "prepared")


@pytest.fixture(scope="module")
def calm_parts(tmp_path_factory, parts):
    """The same without dropout."""
    model = tiny_bert(tmp_path_factory.mktemp("calm") / "model")
    config = json.loads((model / "config.json").read_text())
    none = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    (model / "config.json").write_text(json.dumps(config | none))
    return model, parts[1]


def settings_for(parts, **more) -> AttemptSettings:
    model, prepared = parts
    given = {"task": "two-tower", "run": "", "batch_size": 16, "lr": 1e-3}
    return AttemptSettings(model=str(model), prepared=str(prepared), **(given | more))


def test_recomputed_layers_give_the_same_gradient(parts):
    expected = gradients(load_task(settings_for(parts)), 60)
    loss, found = gradients(load_task(settings_for(parts, gradient_checkpointing=True)), 60)
    assert loss == expected[0]
    for name, gradient in found.items():
        torch.testing.assert_close(gradient, expected[1][name])


def gradients(task, micro_tokens: int, step: int = 3) -> tuple[float, dict[str, torch.Tensor]]:
    object.__setattr__(task._settings, "micro_tokens", micro_tokens)
    task.model.zero_grad()
    loss = float(task.forward_backward(step, DataOrder(task.lengths, 16, 42).examples(step)))
    return loss, {name: p.grad.clone() for name, p in task.model.named_parameters() if p.grad is not None}


def train(task, settings, steps: int, first: int = 0) -> list[float]:
    order, optimizer = DataOrder(task.lengths, settings.batch_size, settings.seed), make_optimizer(task.model, settings)
    losses = []
    for step in range(first, first + steps):
        losses.append(float(task.forward_backward(step, order.examples(step))))
        clip_gradients(task.model.parameters(), settings.max_grad_norm)
        optimizer.step()
        optimizer.zero_grad()
    return losses


@pytest.mark.parametrize("towers", ["shared", "separate"])
def test_gradient_does_not_depend_on_the_split(parts, towers):
    options = {"towers": towers, "symmetric": True, "learn_temperature": True}
    task = load_task(settings_for(parts, options=options))
    loss, whole = gradients(task, 10**6)
    assert whole["log_scale"] != 0
    for micro_tokens in (200, 50, 1):
        split_loss, split = gradients(task, micro_tokens)
        assert split_loss == pytest.approx(loss, rel=1e-5)
        for name, expected in whole.items():
            torch.testing.assert_close(split[name], expected, rtol=1e-3, atol=2e-6)


def test_models_that_cannot_be_packed_match_with_padding(calm_parts):
    packed, padded = (load_task(settings_for(calm_parts, packing=packing)) for packing in (True, False))
    loss, whole = gradients(packed, 10**6)
    for micro_tokens in (10**6, 60):
        padded_loss, split = gradients(padded, micro_tokens)
        assert padded_loss == pytest.approx(loss, rel=1e-5)
        for name, expected in whole.items():
            torch.testing.assert_close(split[name], expected, rtol=1e-3, atol=2e-6)


def test_padded_dropout_depends_only_on_the_step(parts):
    task = load_task(settings_for(parts, packing=False))
    first, _ = gradients(task, 60)
    torch.rand(3)
    assert gradients(task, 60)[0] == first
    assert gradients(task, 60, step=4)[0] != first


@pytest.mark.parametrize("micro_tokens", [10**6, 100])
def test_two_tower_learns_like_a_plain_loop(calm_parts, tmp_path, micro_tokens):
    """The loop of the textbook: padded batches, mean pooling, cosine, cross-entropy over the batch's passages."""
    model, _ = calm_parts
    prepared = tiny_questions(tmp_path / "prepared", near_misses=False)
    (prepared / "corpus.groups.npy").unlink()
    settings = settings_for((model, prepared), micro_tokens=micro_tokens, weight_decay=0.0)
    task = load_task(settings)
    body = AutoModel.from_pretrained(model)
    body.train()
    optimizer = torch.optim.AdamW(body.parameters(), lr=settings.lr, weight_decay=0.0)
    queries, corpus = open_tokens(prepared, "train"), open_tokens(prepared, "corpus")
    qrels = open_array(prepared, "train.qrels")
    order = DataOrder(task.lengths, settings.batch_size, settings.seed)

    def embed(texts):
        vectors = [
            body(input_ids=torch.tensor(text.astype(np.int64))[None]).last_hidden_state[0].mean(0) for text in texts
        ]
        return functional.normalize(torch.stack(vectors), dim=-1)

    expected = []
    for step in range(5):
        rows = qrels[order.examples(step)]
        answers = embed([corpus[at] for at in rows[:, 1]])
        scores = 20 * embed([queries[at] for at in rows[:, 0]]) @ answers.T
        if {4, 5} <= set(rows[:, 1].tolist()):  # a passage and its copy are not wrong for each other
            for row in np.flatnonzero(np.isin(rows[:, 1], (4, 5))):
                scores[row, [at for at in np.flatnonzero(np.isin(rows[:, 1], (4, 5))) if at != row]] = -torch.inf
        loss = functional.cross_entropy(scores, torch.arange(len(rows)))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(body.parameters(), settings.max_grad_norm)
        optimizer.step()
        optimizer.zero_grad()
        expected.append(loss.item())
    assert train(task, settings, 5) == pytest.approx(expected, rel=1e-4)


def test_step_deduplicates_passages_and_masks_non_negatives(parts):
    task = load_task(settings_for(parts))
    pairs = task._pairs
    examples = np.array([0, 1, 2, 4, 5, 30])  # 0 to 2 are of one article; 4 and 5 hold the same text
    mined = np.full((6, 1), -1, dtype=np.int32)
    mined[0] = 1  # a near-miss of the answer's own article
    step = pairs.step_passages(examples, mined, np.random.default_rng(0))
    rows = step.rows_P.tolist()
    assert rows == [0, 1, 2, 4, 5, 7, 9, 11, 30, 37]  # the even examples have a given near-miss
    assert step.rows_P[step.target_B].tolist() == examples.tolist()
    allowed = {
        (int(example), passage): bool(step.allowed_BP[row, rows.index(passage)])
        for row, example in enumerate(examples)
        for passage in rows
    }
    assert allowed[0, 1]  # mined for this very query
    assert not allowed[0, 2]  # of the same article
    assert not allowed[1, 0]
    assert not allowed[4, 5]  # a copy of the answer
    assert allowed[4, 4]
    assert allowed[0, 30]


def test_mined_negatives_are_part_of_the_state(parts):
    settings = settings_for(parts, options={"mining": MINING})
    task = load_task(settings)
    assert task.begin_epoch(0) == {}
    losses = train(task, settings, 2)
    assert task.begin_epoch(1)["near_misses"] > 50
    mined = task._mined.clone()
    saved = {name: tensor.clone() for name, tensor in task.state().items()}
    assert train(task, settings, 1, first=6)[0] > losses[-1]  # near-misses are harder
    second = load_task(settings)
    second.load_state(dict(saved))
    assert second.begin_epoch(1) == {}  # they came with the state
    assert torch.equal(second._mined, mined)
    third = load_task(settings)
    third.load_state({**saved, "near_misses_epoch": torch.tensor(-1)})
    third.begin_epoch(1)  # or are found again, from the same weights
    assert torch.equal(third._mined, mined)
    hidden = task._pairs.relevance["train"]
    for example in range(96):
        assert not set(mined[example].tolist()) & set(hidden.hidden(example).tolist())


def test_training_improves_retrieval(parts):
    settings = settings_for(parts)
    task = load_task(settings)
    before = task.evaluate("validation")
    train(task, settings, 30)
    after = task.evaluate("validation")
    assert set(after) >= {"recall@1", "recall@5", "recall@10", "recall@100", "mrr@10", "ndcg@10", "map@100"}
    assert after["ndcg@10"] > before["ndcg@10"]
    assert task.evaluate("test") == {}


@pytest.mark.parametrize("towers", ["shared", "separate"])
def test_finished_model_loads_in_transformers_and_starts_a_run(parts, tmp_path, towers):
    options = {"towers": towers, "learn_temperature": True}
    settings = settings_for(parts, options=options)
    task = load_task(settings)
    train(task, settings, 4)
    metrics = task.evaluate("validation")
    task.export(tmp_path / "model")
    sides = [""] if towers == "shared" else ["query", "passage"]
    for tower, side in zip(task.model.towers, sides, strict=True):
        folder = tmp_path / "model" / side
        body = AutoModel.from_pretrained(folder).eval()
        text = open_tokens(settings.prepared_path, "corpus")[3]
        ids = torch.tensor(text.astype(np.int64))[None]
        tower.eval()
        expected = functional.normalize(body(input_ids=ids).last_hidden_state.mean(1), dim=-1)
        torch.testing.assert_close(tower([text]), expected)
        assert json.loads((folder / "1_Pooling" / "config.json").read_text())["pooling_mode_mean_tokens"]
        assert json.loads((folder / "sentence_bert_config.json").read_text())["max_seq_length"] == 64
    again = load_task(settings_for((tmp_path / "model", parts[1]), options=options))
    assert again.evaluate("validation") == pytest.approx(metrics)
    assert again.model.log_scale.item() == pytest.approx(task.model.log_scale.item())


def test_cls_pooling_of_the_model_is_used(calm_parts, tmp_path):
    model = tiny_bert(tmp_path / "model")
    (model / "1_Pooling").mkdir()
    (model / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode": "cls"}))
    text = open_tokens(calm_parts[1], "corpus")[3]
    body = AutoModel.from_pretrained(model).eval()
    expected = functional.normalize(body(torch.tensor(text.astype(np.int64))[None]).last_hidden_state[:, 0], dim=-1)
    for packing in (True, False):
        task = load_task(settings_for((model, calm_parts[1]), packing=packing))
        task.model.eval()
        torch.testing.assert_close(task.model.towers[0]([text]), expected)
    (model / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode_lasttoken": True}))
    with pytest.raises(RequestError, match="pooling"):
        load_task(settings_for((model, calm_parts[1])))


@pytest.mark.parametrize("hidden", [0, 16])
def test_vector_towers_learn_and_start_another_run(tmp_path, hidden):
    prepared = tiny_vectors(tmp_path / "prepared")
    options = {"towers": "separate", "vectors": {"size": 8, "hidden": hidden}, "mining": MINING}
    settings = settings_for((tmp_path / "none", prepared), options=options, lr=1e-2)
    task = load_task(settings)
    before = task.evaluate("validation")["ndcg@10"]
    train(task, settings, 60)
    task.begin_epoch(1)
    train(task, settings, 6, first=60)
    after = task.evaluate("validation")
    assert after["ndcg@10"] > before + 0.2
    task.export(tmp_path / "model")
    again = load_task(settings_for((tmp_path / "model", prepared), options=options))
    assert again.evaluate("validation") == pytest.approx(after)


def test_queries_and_passages_may_have_vectors_of_two_sizes(tmp_path):
    prepared = tiny_vectors(tmp_path / "prepared")
    for split in ("train", "validation"):
        np.save(prepared / f"{split}.vectors.npy", np.load(prepared / f"{split}.vectors.npy")[:, :9])
    parts = tmp_path / "none", prepared
    with pytest.raises(RequestError, match="two sizes"):
        load_task(settings_for(parts))
    settings = settings_for(parts, options={"towers": "separate"}, lr=1e-2)
    task = load_task(settings)
    losses = train(task, settings, 20)
    assert losses[-1] < losses[0]


def test_vector_towers_give_one_gradient_however_split(tmp_path):
    options = {"vectors": {"hidden": 16, "dropout": 0.3}}
    task = load_task(settings_for((tmp_path / "none", tiny_vectors(tmp_path / "prepared")), options=options))
    _, whole = gradients(task, 10**6)
    _, split = gradients(task, 5)
    for name, expected in whole.items():
        torch.testing.assert_close(split[name], expected)


def test_all_invalid_options_are_reported_at_once(parts):
    wrong = {"tower": "shared", "same_article": "kept", "mining": {"windows": 3, "first_rank": 9, "last_rank": 9}}
    with pytest.raises(RequestError) as refused:
        load_task(settings_for(parts, options=wrong))
    for word in ("tower is unknown", "'kept'", "mining.windows is unknown", "from 9 to 9"):
        assert word in refused.value.found
