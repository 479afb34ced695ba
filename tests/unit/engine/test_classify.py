"""Classifiers: one label or many, weights of classes, long texts in windows, models that do not pack."""

import json

import numpy as np
import pytest
import torch
from transformers import MPNetConfig, MPNetModel

from holdfast.core.prepared import Manifest
from holdfast.data.data_request import DataRequest
from holdfast.data.prepare import prepare
from holdfast.data.shards import write_manifest, write_tokens
from holdfast.data.survey_dataset import survey
from holdfast.data.tokenizer import ModelTokenizer
from holdfast.engine.attempt_settings import AttemptSettings
from holdfast.engine.data_order import DataOrder
from holdfast.engine.tasks import load_task
from tests.tiny import SPLITS, WORDS, _tiny_tokenizer, tiny_bert, tiny_prepared, tiny_texts


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    return tiny_bert(tmp_path_factory.mktemp("bert"))


def task_for(model, prepared, **more):
    return load_task(
        AttemptSettings(task="classify", model=str(model), prepared=str(prepared), run="unused", batch_size=8, **more)
    )


def many_labels(folder, count=40):
    folder.mkdir(parents=True)
    for split in ("train", "validation"):
        texts, _ = tiny_texts(count)
        write_tokens(folder, split, texts)
        labels = [[word in text for word in (5, 6, 7, 8)] for text in texts]
        np.save(folder / f"{split}.labels.npy", np.array(labels, dtype=np.float32))
    write_manifest(folder, Manifest(task="classify", labels=tuple("abcd"), multi_label=True, splits=SPLITS))
    return folder


def scores_and_loss(task, examples):
    """The step's loss beside the scores it was computed from; nothing is dropped."""
    task.model.eval()
    task.model.train = lambda mode=True: task.model
    loss = float(task.forward_backward(0, examples))
    return torch.from_numpy(task.predict("train")[examples]), loss


def test_many_labels_are_learned_by_their_mean_loss(bert, tmp_path):
    task = task_for(bert, many_labels(tmp_path / "prepared"))
    scores, loss = scores_and_loss(task, np.arange(8))
    truth = torch.from_numpy(np.load(tmp_path / "prepared" / "train.labels.npy")[:8]).double()
    wanted = torch.nn.functional.binary_cross_entropy_with_logits(scores, truth)
    assert loss == pytest.approx(float(wanted), rel=1e-5)
    report = task.report("validation")
    assert [row["label"] for row in report["classes"]] == list("abcd")
    assert "confusion" not in report


def test_class_weights_match_torch_for_any_split(bert, tmp_path):
    prepared, weights = tiny_prepared(tmp_path / "prepared"), [0.5, 2.0, 1.0]
    truth = torch.from_numpy(np.load(prepared / "train.labels.npy")[:8])
    for micro_tokens in (10_000, 30):
        task = task_for(bert, prepared, options={"class_weights": weights}, micro_tokens=micro_tokens)
        scores, loss = scores_and_loss(task, np.arange(8))
        wanted = torch.nn.functional.cross_entropy(scores, truth, torch.tensor(weights).double())
        assert loss == pytest.approx(float(wanted), rel=1e-5)


def test_scores_of_a_long_texts_windows_are_averaged(bert, tmp_path):
    prepared = tiny_prepared(tmp_path / "prepared", count=10)
    whole = task_for(bert, prepared).predict("validation")
    manifest = json.loads((prepared / "manifest.json").read_text())
    (prepared / "manifest.json").write_text(json.dumps(manifest | {"overlong": "window"}))
    np.save(prepared / "validation.windows.npy", np.array([0, 1, 3, *range(4, 25)]))
    task = task_for(bert, prepared)
    rows = task.predict("validation")
    assert len(rows) == 23
    assert np.allclose(rows[1], whole[1:3].mean(0), atol=1e-6)
    assert np.allclose(rows[2], whole[3], atol=1e-6)
    assert sum(row["support"] for row in task.report("validation")["classes"]) == 23


def test_texts_over_the_limit_are_read_in_windows(bert, tmp_path):
    """The word that decides stands beyond the 64 tokens the model takes."""
    lines = ["text,label"]
    for row in range(60):
        words = [f"w{20 + (row * 7 + at) % 60}" for at in range(100)]
        words[90] = "w7" if row % 2 else "w8"
        lines.append(f"{' '.join(words)},{'odd' if row % 2 else 'even'}")
    (tmp_path / "long.csv").write_text("\n".join(lines))
    tokens = ModelTokenizer(bert)
    found = survey(DataRequest(path=tmp_path / "long.csv", task="classify"))  # like `train`
    prepared = prepare(found.source, tokens, tmp_path / "prepared")
    assert prepared.manifest.overlong == "window", "chosen by itself, since every text is too long"
    task = task_for(bert, prepared.folder, lr=5e-3)
    rows = prepared.manifest.splits["validation"].rows
    assert task.predict("validation").shape == (rows, 2)
    assert sum(row["support"] for row in task.report("validation")["classes"]) == rows
    assert max(task.lengths) <= 64
    last = np.concatenate([task._data.texts["train"][at] for at in range(len(task.lengths))])
    assert {7, 8} <= set(last.tolist()), "the deciding word is in a window"


def test_model_with_custom_attention_is_padded(tmp_path):
    torch.manual_seed(0)
    config = MPNetConfig(
        vocab_size=WORDS,
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=4,
        intermediate_size=48,
        max_position_embeddings=64,
    )
    MPNetModel(config).save_pretrained(tmp_path / "model")
    _tiny_tokenizer(tmp_path / "model")
    task = task_for(tmp_path / "model", tiny_prepared(tmp_path / "prepared"))
    assert not task.is_packed
    order, optimizer = DataOrder(task.lengths, 8, 1), torch.optim.AdamW(task.model.parameters(), lr=3e-3)
    losses = []
    for step in range(60):
        losses.append(float(task.forward_backward(step, order.examples(step))))
        optimizer.step()
        optimizer.zero_grad()
    assert np.mean(losses[-10:]) < np.mean(losses[:10]) - 0.1
    task.export(tmp_path / "out")
    assert (tmp_path / "out" / "model.safetensors").exists()


def test_gradient_checkpointing_changes_nothing(bert, tmp_path):
    prepared = tiny_prepared(tmp_path / "prepared")
    gradients = []
    for checkpointing in (False, True):
        task = task_for(bert, prepared, gradient_checkpointing=checkpointing)
        task.forward_backward(3, np.arange(8))
        gradients.append({name: weight.grad for name, weight in task.model.named_parameters()})
    for name, gradient in gradients[0].items():
        torch.testing.assert_close(gradients[1][name], gradient)
