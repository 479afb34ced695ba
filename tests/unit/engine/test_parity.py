"""With one seed and one tiny model each task gives the losses of a plain loop over the same batches."""

import json

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification

from holdfast.data.shards import open_array, open_tokens
from holdfast.engine.attempt_settings import AttemptSettings
from holdfast.engine.data_order import DataOrder
from holdfast.engine.new_weights import normal_weight
from holdfast.engine.optim import clip_gradients, make_optimizer
from holdfast.engine.steps import learning_rate
from holdfast.engine.tasks import load_task
from tests.tiny import tiny_bert, tiny_instructions, tiny_llama, tiny_prepared

STEPS = 8


def settings_for(task: str, model, prepared, run, **more) -> AttemptSettings:
    return AttemptSettings(
        task=task, model=str(model), prepared=str(prepared), run=str(run), lr=1e-3, batch_size=8, **more
    )


def without_dropout(folder) -> None:
    config = json.loads((folder / "config.json").read_text())
    names = ("hidden_dropout_prob", "attention_probs_dropout_prob", "attention_dropout")
    (folder / "config.json").write_text(json.dumps(config | {name: 0.0 for name in names if name in config}))


def our_losses(settings: AttemptSettings) -> list[float]:
    task = load_task(settings)
    order = DataOrder(task.lengths, settings.batch_size, settings.seed)
    optimizer = make_optimizer(task.model, settings)
    losses = []
    for step in range(STEPS):
        losses.append(float(task.forward_backward(step, order.examples(step))))
        clip_gradients(task.model.parameters(), settings.max_grad_norm)
        for group in optimizer.param_groups:
            group["lr"].fill_(learning_rate(settings, step, STEPS))
        optimizer.step()
        optimizer.zero_grad()
    return losses


def reference_losses(settings: AttemptSettings, model, batch_of) -> list[float]:
    """The plain loop: padded batches, torch's own AdamW, the model's own loss."""
    torch.manual_seed(settings.seed)
    model.train()
    decayed = [p for p in model.parameters() if p.ndim >= 2]
    plain = [p for p in model.parameters() if p.ndim < 2]
    groups = [{"params": decayed, "weight_decay": settings.weight_decay}, {"params": plain, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=settings.lr)
    lengths = open_tokens(settings.prepared_path, "train").lengths
    order = DataOrder(lengths, settings.batch_size, settings.seed)
    losses = []
    for step in range(STEPS):
        loss = model(**batch_of(order.examples(step))).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), settings.max_grad_norm)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(settings, step, STEPS)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def padded(texts, examples) -> dict[str, torch.Tensor]:
    longest = max(len(texts[int(at)]) for at in examples)
    ids, mask = (
        torch.zeros(len(examples), longest, dtype=torch.long),
        torch.zeros(len(examples), longest, dtype=torch.long),
    )
    for row, at in enumerate(examples):
        text = torch.from_numpy(texts[int(at)].astype(np.int64))
        ids[row, : len(text)], mask[row, : len(text)] = text, 1
    return {"input_ids": ids, "attention_mask": mask}


@pytest.mark.parametrize("micro_tokens", [10_000, 50])
def test_classify_learns_like_a_plain_loop(tmp_path, micro_tokens):
    model, prepared = tiny_bert(tmp_path / "model"), tiny_prepared(tmp_path / "prepared")
    without_dropout(model)
    settings = settings_for("classify", model, prepared, tmp_path, micro_tokens=micro_tokens)
    reference = AutoModelForSequenceClassification.from_pretrained(model, num_labels=3)
    head = normal_weight(settings.seed, "classifier.weight", (3, 32), reference.config.initializer_range)
    reference.classifier.weight.data.copy_(torch.from_numpy(head))
    texts, labels = open_tokens(prepared, "train"), open_array(prepared, "train.labels")

    def batch_of(examples):
        return padded(texts, examples) | {"labels": torch.from_numpy(np.asarray(labels[examples]))}

    expected = reference_losses(settings, reference, batch_of)
    assert our_losses(settings) == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("micro_tokens", [10_000, 50])
@pytest.mark.parametrize("checkpointing", [False, True])
def test_causal_learns_like_a_plain_loop(tmp_path, micro_tokens, checkpointing):
    model, prepared = tiny_llama(tmp_path / "model"), tiny_instructions(tmp_path / "prepared")
    settings = settings_for(
        "causal", model, prepared, tmp_path, micro_tokens=micro_tokens, gradient_checkpointing=checkpointing
    )
    reference = AutoModelForCausalLM.from_pretrained(model)
    texts, learn = open_tokens(prepared, "train"), open_array(prepared, "train.learn")

    def batch_of(examples):
        batch = padded(texts, examples)
        labels = torch.full_like(batch["input_ids"], -100)
        for row, at in enumerate(examples):
            flags = torch.from_numpy(np.array(learn[texts.starts[at] : texts.starts[at + 1]])) > 0
            labels[row, : len(flags)][flags] = batch["input_ids"][row, : len(flags)][flags]
        return batch | {"labels": labels}

    expected = reference_losses(settings, reference, batch_of)
    assert our_losses(settings) == pytest.approx(expected, rel=1e-4)


def test_functional_dropout_ignores_rng_history(tmp_path):
    from transformers import OPTConfig, OPTForCausalLM

    model, prepared = tiny_llama(tmp_path / "model"), tiny_instructions(tmp_path / "prepared")
    config = OPTConfig(
        vocab_size=120,
        hidden_size=32,
        word_embed_proj_dim=32,
        ffn_dim=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=64,
        dropout=0.3,
    )
    OPTForCausalLM(config).save_pretrained(model)
    task = load_task(settings_for("causal", model, prepared, tmp_path / "run", threads=2))
    examples = DataOrder(task.lengths, 8, 42).examples(3)
    losses = []
    for seed in (0, 1):
        torch.manual_seed(seed)
        losses.append(float(task.forward_backward(3, examples)))
    assert losses[0] == losses[1]
