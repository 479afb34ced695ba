"""Language models: samples, the chat template that is exported, and models that cannot be packed."""

import json
from itertools import pairwise

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, BloomConfig, BloomForCausalLM, GPT2Config, GPT2LMHeadModel

from holdfast.core.errors import RequestError
from holdfast.core.scores import ModelMetrics, SampleAnswer, SplitMetrics
from holdfast.data.shards import open_array, open_tokens
from holdfast.engine.model_export import write_card
from holdfast.engine.tasks import load_task
from tests.tiny import WORDS, tiny_instructions, tiny_llama
from tests.unit.engine.test_parity import our_losses, padded, reference_losses, settings_for


@pytest.fixture
def parts(tmp_path):
    return tiny_llama(tmp_path / "model"), tiny_instructions(tmp_path / "prepared")


def other_model(folder, kind: str):
    """A tiny model of another family beside the tiny tokenizer."""
    tiny_llama(folder)
    torch.manual_seed(0)
    if kind == "gpt2":
        shape = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64}
        GPT2LMHeadModel(
            GPT2Config(vocab_size=WORDS, attn_pdrop=0, embd_pdrop=0, resid_pdrop=0, **shape)
        ).save_pretrained(folder)
    else:
        BloomForCausalLM(BloomConfig(vocab_size=WORDS, hidden_size=32, n_layer=2, n_head=4)).save_pretrained(folder)
    return folder


@pytest.mark.parametrize(("kind", "is_packed"), [("gpt2", True), ("bloom", False)])
def test_other_model_family_matches_a_plain_loop(tmp_path, kind, is_packed):
    model, prepared = other_model(tmp_path / "model", kind), tiny_instructions(tmp_path / "prepared")
    settings = settings_for("causal", model, prepared, tmp_path)
    assert load_task(settings).is_packed is is_packed
    texts, learn = open_tokens(prepared, "train"), open_array(prepared, "train.learn")

    def batch_of(examples):
        batch = padded(texts, examples)
        labels = torch.full_like(batch["input_ids"], -100)
        for row, at in enumerate(examples):
            flags = torch.from_numpy(np.array(learn[texts.starts[at] : texts.starts[at + 1]])) > 0
            labels[row, : len(flags)][flags] = batch["input_ids"][row, : len(flags)][flags]
        return batch | {"labels": labels}

    expected = reference_losses(settings, AutoModelForCausalLM.from_pretrained(model), batch_of)
    assert our_losses(settings) == pytest.approx(expected, rel=1e-4)


def test_samples_match_generate(parts, tmp_path):
    settings = settings_for("causal", *parts, tmp_path, options={"samples": 2})
    task = load_task(settings)
    task.model.train()
    samples = task.samples()
    assert task.model.training
    text, flags = open_tokens(parts[1], "validation")[0], open_array(parts[1], "validation.learn")
    asked = int(np.argmax(flags))
    plain = AutoModelForCausalLM.from_pretrained(parts[0]).eval()
    prompt = torch.from_numpy(text[:asked].astype(np.int64))[None]
    answer = plain.generate(prompt, max_new_tokens=min(60, 64 - asked), do_sample=False)[0, asked:]
    tokenizer = AutoTokenizer.from_pretrained(parts[0])
    assert len(samples) == 2
    assert samples[0].prompt == tokenizer.decode(text[:asked], skip_special_tokens=True).strip()
    assert samples[0].answer == tokenizer.decode(answer, skip_special_tokens=True)
    assert samples[0].wanted == tokenizer.decode(text[asked:], skip_special_tokens=True)


def test_plain_text_samples_continue_the_opening(parts, tmp_path):
    learn = open_array(parts[1], "validation.learn")
    np.save(parts[1] / "validation.learn.npy", np.ones_like(learn))
    sample = load_task(settings_for("causal", *parts, tmp_path, options={"samples": 1})).samples()[0]
    assert sample.prompt
    assert sample.wanted


def test_sampling_does_not_change_training(parts, tmp_path):
    task = load_task(settings_for("causal", *parts, tmp_path))
    examples = np.arange(8)
    before = float(task.forward_backward(0, examples))
    task.samples()
    assert float(task.forward_backward(0, examples)) == before


def test_exported_tokenizer_has_the_training_chat_template(parts, tmp_path):
    template = "{% for message in messages %}<{{ message.role }}>{{ message.content }}{% endfor %}"
    manifest = json.loads((parts[1] / "manifest.json").read_text())
    (parts[1] / "manifest.json").write_text(json.dumps(manifest | {"chat_template": template}))
    task = load_task(settings_for("causal", *parts, tmp_path, options={"lora": {"r": 2}}))
    task.export(tmp_path / "out")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out")
    assert tokenizer.apply_chat_template([{"role": "user", "content": "w3"}], tokenize=False) == "<user>w3"


def test_model_card_escapes_samples(parts, tmp_path):
    settings = settings_for("causal", *parts, tmp_path)
    samples = (SampleAnswer(prompt="say\n# hello", answer="", wanted="hello"),)
    found = SplitMetrics(scores={"loss": 0.5}, samples=samples)
    write_card(tmp_path, settings, ModelMetrics(step=3, steps=9, splits={"validation": found}))
    card = (tmp_path / "README.md").read_text()
    assert "### Sample 1, validation" in card
    assert "\n    # hello\n" in card
    assert "    (nothing)" in card


def test_unknown_option_is_refused(parts, tmp_path):
    with pytest.raises(RequestError, match="lara") as refused:
        load_task(settings_for("causal", *parts, tmp_path, options={"lara": {}}))
    assert refused.value.found.endswith("lora, samples")


def test_captured_step_has_the_plain_loss(parts, tmp_path):
    task = load_task(settings_for("causal", *parts, tmp_path))
    examples = np.array([5, 9, 2])
    arrays = task.step_arrays(0, examples)
    assert len(arrays["ids"]) % 512 == 0
    assert len(arrays["at"]) % 256 == 0
    bounds, at = arrays["bounds"], arrays["at"][arrays["targets"] >= 0]
    assert np.isin(bounds[:-1], np.flatnonzero(arrays["positions"] == 0)).all()
    wanted = float(task.forward_backward(0, examples))
    assert len(at) == sum(int(task._data.flags("train", int(one))[1:].sum()) for one in examples)
    model = AutoModelForCausalLM.from_pretrained(parts[0])
    losses = []
    for first, end in pairwise(bounds[:-1]):
        rows = model(torch.from_numpy(arrays["ids"][first:end])[None]).logits[0]
        inside = (at >= first) & (at < end)
        targets = arrays["targets"][: len(at)][inside]
        losses.append(
            torch.nn.functional.cross_entropy(rows[at[inside] - first], torch.from_numpy(targets), reduction="none")
        )
    assert torch.cat(losses).mean().item() == pytest.approx(wanted, rel=1e-4)
