"""Classifiers trained with MLX learn what they learn with torch, and are folders that transformers loads."""

import numpy as np
import pytest
import torch
import transformers
from transformers import AutoModelForSequenceClassification

from holdfast.core.events import BackendChanged
from holdfast.core.prepared import Manifest
from holdfast.core.runfolder import model_folder
from holdfast.data.shards import open_tokens, write_manifest, write_tokens
from holdfast.engine.attempt_settings import AttemptSettings
from holdfast.engine.tasks import load_task
from tests.tiny import SPLITS, WORDS, _tiny_tokenizer, tiny_bert, tiny_prepared, tiny_texts
from tests.unit.engine.mlx.backends import losses, norms, train, without_dropout

pytest.importorskip("mlx.core")

SHAPE = {
    "vocab_size": WORDS,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": 64,
}
DISTIL = {"vocab_size": WORDS, "dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 48, "max_position_embeddings": 64}
KINDS = {
    "Bert": SHAPE,
    "Roberta": SHAPE,
    "XLMRoberta": SHAPE,
    "Camembert": SHAPE,
    "Electra": {**SHAPE, "embedding_size": 16},
    "MPNet": {**SHAPE, "pad_token_id": 1},
    "DistilBert": DISTIL,
}


def make_model(folder, kind):
    torch.manual_seed(1)
    config = getattr(transformers, f"{kind}Config")(**KINDS[kind])
    getattr(transformers, f"{kind}Model")(config).save_pretrained(folder)
    _tiny_tokenizer(folder)
    return folder


def many_labels(folder):
    folder.mkdir()
    for split in ("train", "validation"):
        texts, _ = tiny_texts(40)
        write_tokens(folder, split, texts)
        labels = [[word in text for word in (5, 6, 7, 8)] for text in texts]
        np.save(folder / f"{split}.labels.npy", np.array(labels, dtype=np.float32))
    write_manifest(folder, Manifest(task="classify", labels=tuple("abcd"), multi_label=True, splits=SPLITS))
    return folder


@pytest.mark.parametrize("kind", KINDS)
def test_losses_and_gradients_are_those_of_torch(kind, tmp_path):
    model, prepared = without_dropout(make_model(tmp_path / "model", kind)), tiny_prepared(tmp_path / "prepared")
    tokens = np.load(prepared / "train.tokens.npy")
    np.save(prepared / "train.tokens.npy", np.where(tokens == 1, 2, tokens))  # MPNet takes 1 for padding
    found = {
        device: train(tmp_path / device, model, prepared, device=device, epochs=1, packing=kind != "MPNet")
        for device in ("cpu", "mlx")
    }
    assert losses(found["mlx"]) == pytest.approx(losses(found["cpu"]), rel=2e-5)
    assert norms(found["mlx"]) == pytest.approx(norms(found["cpu"]), rel=1e-3)


@pytest.mark.parametrize("kind", KINDS)
def test_transformers_loads_the_exported_folder(kind, tmp_path):
    model, prepared = make_model(tmp_path / "model", kind), tiny_prepared(tmp_path / "prepared")
    train(tmp_path / "run", model, prepared, device="mlx", max_steps=2)
    folder = model_folder(tmp_path / "run")
    loaded, report = AutoModelForSequenceClassification.from_pretrained(folder, output_loading_info=True)
    assert not report["missing_keys"]
    assert loaded.config.id2label == {0: "a", 1: "b", 2: "c"}
    again = load_task(
        AttemptSettings(task="classify", model=str(folder), prepared=str(prepared), run="unused", device="mlx")
    )
    found, texts = again.predict("validation"), open_tokens(prepared, "validation")
    with torch.no_grad():
        for at in (0, 5):
            ids = torch.from_numpy(texts[at].astype(np.int64))[None]
            scores = loaded.eval()(ids, attention_mask=torch.ones_like(ids)).logits[0]
            np.testing.assert_allclose(found[at], scores.numpy(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("micro_tokens", [10_000, 60])
def test_many_labels_are_learned_as_with_torch(micro_tokens, tmp_path):
    model, prepared = without_dropout(tiny_bert(tmp_path / "model")), many_labels(tmp_path / "prepared")
    wanted = {"micro_tokens": micro_tokens, "epochs": 1}
    found = {device: train(tmp_path / device, model, prepared, device=device, **wanted) for device in ("cpu", "mlx")}
    assert losses(found["mlx"]) == pytest.approx(losses(found["cpu"]), rel=2e-5)


def test_class_weights_count_as_with_torch(tmp_path):
    model, prepared = without_dropout(tiny_bert(tmp_path / "model")), tiny_prepared(tmp_path / "prepared")
    wanted = {"options": {"class_weights": [0.5, 2.0, 1.0]}, "max_steps": 4, "micro_tokens": 100}
    found = {device: train(tmp_path / device, model, prepared, device=device, **wanted) for device in ("cpu", "mlx")}
    assert losses(found["mlx"]) == pytest.approx(losses(found["cpu"]), rel=2e-5)


def test_gradient_checkpointing_and_micro_batches_keep_dropout(tmp_path):
    model, prepared = tiny_bert(tmp_path / "model"), tiny_prepared(tmp_path / "prepared")
    plain = losses(train(tmp_path / "plain", model, prepared, device="mlx", max_steps=4))
    split = train(tmp_path / "split", model, prepared, device="mlx", max_steps=4, micro_tokens=60)
    again = train(tmp_path / "again", model, prepared, device="mlx", max_steps=4, gradient_checkpointing=True)
    assert losses(split) == pytest.approx(plain, rel=1e-5)
    assert losses(again) == pytest.approx(plain, rel=1e-5)
    dry = train(tmp_path / "dry", without_dropout(model), prepared, device="mlx", max_steps=4)
    assert losses(dry) != pytest.approx(plain, rel=1e-3), "dropout has an effect"


def test_half_precision_stays_close(tmp_path):
    model, prepared = without_dropout(tiny_bert(tmp_path / "model")), tiny_prepared(tmp_path / "prepared")
    plain = train(tmp_path / "plain", model, prepared, device="mlx", max_steps=4)
    half = train(tmp_path / "half", model, prepared, device="mlx", max_steps=4, precision="bf16")
    assert losses(half) == pytest.approx(losses(plain), rel=3e-2)
    assert losses(half) != losses(plain)


@pytest.mark.parametrize(("first", "then"), [("cpu", "mlx"), ("mlx", "cpu")])
def test_run_moves_between_backends_and_says_so(first, then, tmp_path):
    model, prepared = without_dropout(tiny_bert(tmp_path / "model")), tiny_prepared(tmp_path / "prepared")
    whole = losses(train(tmp_path / "whole", model, prepared, device=first, epochs=2))
    run = tmp_path / "run"
    begun = train(run, model, prepared, device=first, epochs=2)
    newest = sorted((run / "checkpoints").glob("step-*"))[-1]
    for folder in (newest, run / "model"):
        folder.rename(folder.with_name(f"gone-{folder.name}"))
    continued = train(run, model, prepared, number=2, device=then, epochs=2)
    names = {"cpu": "torch", "mlx": "mlx"}
    changes = [(event.before, event.now) for event in continued if isinstance(event, BackendChanged)]
    assert changes == [(names[first], names[then])]
    assert not any(isinstance(event, BackendChanged) for event in begun)
    assert len(losses(continued)) == 12
    assert losses(continued) == pytest.approx(whole[12:], rel=1e-4)
