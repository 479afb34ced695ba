"""Language models trained with MLX learn what they learn with torch, and are read by transformers, peft and mlx-lm."""

import json
import subprocess
import sys

import numpy as np
import pytest
import torch
import transformers
from transformers import AutoModelForCausalLM

from holdfast.core.errors import RequestError
from holdfast.core.runfolder import model_folder
from holdfast.engine.attempt_settings import AttemptSettings
from holdfast.engine.tasks import load_task
from tests.tiny import WORDS, _tiny_tokenizer, tiny_instructions, tiny_llama
from tests.unit.engine.mlx.backends import losses, norms, train

mx = pytest.importorskip("mlx.core")
pytest.importorskip("mlx_lm")

from holdfast.engine.mlx.mlx_language_model import token_losses  # noqa: E402  (after the question above)

SHAPE = {
    "vocab_size": WORDS,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 64,
    "max_position_embeddings": 64,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
ROPE = {"rope_parameters": {"rope_type": "default", "rope_theta": 700.0}}  # other than anyone's default
KINDS = {
    "Llama": {**SHAPE, **ROPE},
    "Qwen2": {**SHAPE, **ROPE},
    "Qwen3": {**SHAPE, "head_dim": 16},
    "Mistral": {**SHAPE, "sliding_window": None},
    "Gemma": {**SHAPE, "head_dim": 16},
    "Gemma2": {**SHAPE, "head_dim": 16, "sliding_window": 64},
    "Gemma3": {**SHAPE, "head_dim": 16, "sliding_window": 8, "num_hidden_layers": 6},
    "Phi": {**SHAPE, "num_key_value_heads": 4, **ROPE, "embd_pdrop": 0.0, "resid_pdrop": 0.0},
    "Phi3": {**SHAPE, "embd_pdrop": 0.0, "resid_pdrop": 0.0},
    "SmolLM3": SHAPE,
}
LORA = {"options": {"lora": {"r": 4, "lora_alpha": 8, "target_modules": "all-linear"}, "samples": 1}}
# mlx-lm loads torch when it is imported, so it runs in a process of its own, as it would for a user.
LOAD = """
import sys
import mlx.core as mx
from mlx_lm import load
model, tokenizer = load(sys.argv[1], adapter_path=sys.argv[2] or None)
ids = [int(one) for one in sys.argv[3].split(",")]
print(*model(mx.array(ids)[None])[0, -1].astype(mx.float32).tolist())
"""


def make_model(folder, kind):
    torch.manual_seed(1)
    name = "Gemma3TextConfig" if kind == "Gemma3" else f"{kind}Config"
    config = getattr(transformers, name)(**KINDS[kind])
    getattr(transformers, f"{kind}ForCausalLM")(config).save_pretrained(folder)
    _tiny_tokenizer(folder)
    return folder


def by_mlx_lm(folder, ids, adapter=""):
    """The scores after these tokens."""
    given = [sys.executable, "-c", LOAD, str(folder), str(adapter), ",".join(map(str, ids))]
    done = subprocess.run(given, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return np.array(done.stdout.split(), dtype=np.float32)


def by_transformers(folder, ids):
    model = AutoModelForCausalLM.from_pretrained(folder).eval()
    with torch.no_grad():
        return model(torch.tensor([ids])).logits[0, -1].numpy()


def by_task(folder, prepared, ids, **more):
    """The scores of a finished model in our own backend."""
    given = {"task": "causal", "model": str(folder), "prepared": str(prepared), "run": "unused", "device": "mlx"}
    task = load_task(AttemptSettings(**given | more))
    return np.array(task._model.net(mx.array(ids)[None])[0, -1].astype(mx.float32))


@pytest.mark.parametrize("settings", [{}, LORA], ids=["full", "LoRA"])
@pytest.mark.parametrize("kind", KINDS)
def test_language_models_learn_as_with_torch(kind, settings, tmp_path):
    model, prepared = make_model(tmp_path / "model", kind), tiny_instructions(tmp_path / "prepared", count=48)
    wanted = {"task": "causal", "max_steps": 4, "eval_steps": 4, "options": {"samples": 0}, **settings}
    found = {device: train(tmp_path / device, model, prepared, device=device, **wanted) for device in ("cpu", "mlx")}
    assert losses(found["mlx"]) == pytest.approx(losses(found["cpu"]), rel=5e-5)
    assert norms(found["mlx"]) == pytest.approx(norms(found["cpu"]), rel=2e-3)
    folder, ids = model_folder(tmp_path / "mlx"), [5, 9, 17, 30]
    np.testing.assert_allclose(by_task(folder, prepared, ids), by_transformers(folder, ids), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("more", [{"micro_tokens": 60}, {"gradient_checkpointing": True}], ids=["split", "recomputed"])
def test_adapter_dropout_is_kept_by_any_split(more, tmp_path):
    model, prepared = tiny_llama(tmp_path / "model"), tiny_instructions(tmp_path / "prepared")
    dropped = {"options": {"lora": {**LORA["options"]["lora"], "lora_dropout": 0.5}, "samples": 0}}
    wanted = {"task": "causal", "max_steps": 6, "eval_steps": 6, "device": "mlx", "lr": 1e-2}
    plain = losses(train(tmp_path / "plain", model, prepared, **wanted, **dropped))
    again = losses(train(tmp_path / "again", model, prepared, **wanted, **dropped, **more))
    assert again == pytest.approx(plain, rel=1e-5)
    dry = losses(train(tmp_path / "dry", model, prepared, **wanted, **LORA))
    assert dry != pytest.approx(plain, rel=1e-4)


def test_finished_model_and_adapters_are_read_by_mlx_lm(tmp_path):
    model, prepared = make_model(tmp_path / "model", "Llama"), tiny_instructions(tmp_path / "prepared")
    train(tmp_path / "run", model, prepared, task="causal", device="mlx", max_steps=4, lr=1e-2, **LORA)
    folder, ids = model_folder(tmp_path / "run"), [5, 9, 17, 30]
    expected = by_transformers(folder, ids)
    np.testing.assert_allclose(by_mlx_lm(folder, ids), expected, rtol=1e-3, atol=1e-4)
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(config | {"rope_theta": 700.0}))  # where mlx-lm looks for it
    np.testing.assert_allclose(by_mlx_lm(model, ids, folder / "adapter_mlx"), expected, rtol=1e-3, atol=1e-4)
    assert not np.allclose(by_transformers(model, ids), expected, atol=1e-3), "something was learned"
    from peft import PeftModel

    adapted = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(model), folder / "adapter").eval()
    with torch.no_grad():
        found = adapted(torch.tensor([ids])).logits[0, -1].numpy()
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-4)


def test_base_in_four_bits_keeps_its_adapters_in_every_export(tmp_path):
    model, prepared = make_model(tmp_path / "model", "Llama"), tiny_instructions(tmp_path / "prepared")
    wanted = {"task": "causal", "device": "mlx", "max_steps": 4, "lr": 1e-2, "load_in_4bit": True, **LORA}
    found = train(tmp_path / "run", model, prepared, **wanted)
    assert all(np.isfinite(losses(found)))
    folder, ids = model_folder(tmp_path / "run"), [5, 9, 17, 30]
    expected = by_transformers(folder, ids)
    four = folder / "mlx"
    np.testing.assert_allclose(by_mlx_lm(four, ids, four / "adapters"), expected, rtol=1e-2, atol=1e-3)
    without = by_mlx_lm(four, ids)
    assert not np.allclose(without, expected, rtol=1e-2, atol=1e-3), "the adapters count"
    # The folder in 4 bits is a base that a run can start from.
    np.testing.assert_allclose(by_task(four, prepared, ids, **LORA), without, rtol=1e-2, atol=1e-3)
    with pytest.raises(RequestError, match="quantized"):
        by_task(four, prepared, ids)


def test_window_that_mlx_lm_leaves_out_is_refused(tmp_path):
    torch.manual_seed(0)
    config = transformers.MistralConfig(**SHAPE, sliding_window=16)
    transformers.MistralForCausalLM(config).save_pretrained(tmp_path / "model")
    with pytest.raises(RequestError) as caught:
        by_task(tmp_path / "model", tiny_instructions(tmp_path / "prepared"), [1])
    assert "sliding_window is 16" in caught.value.found


def test_loss_over_a_large_vocabulary_is_exact():
    logits = np.random.default_rng(0).normal(size=(4, 50_001)).astype(np.float32) * 3
    found = np.array(token_losses(mx.array(logits), mx.array([1, 2, 3, 50_000])))
    expected = torch.nn.functional.cross_entropy(
        torch.tensor(logits, dtype=torch.float64), torch.tensor([1, 2, 3, 50_000]), reduction="none"
    )
    np.testing.assert_allclose(found, expected.numpy(), atol=2e-6)
    assert np.isfinite(np.array(mx.grad(lambda x: token_losses(x, mx.array([0])).sum())(mx.zeros((1, 300))))).all()


def test_model_with_dropout_of_its_own_is_refused(tmp_path):
    torch.manual_seed(0)
    config = transformers.GPT2Config(vocab_size=WORDS, n_embd=32, n_layer=1, n_head=2, n_positions=64)
    transformers.GPT2LMHeadModel(config).save_pretrained(tmp_path / "model")
    with pytest.raises(RequestError) as caught:
        by_task(tmp_path / "model", tiny_instructions(tmp_path / "prepared"), [1])
    assert "resid_pdrop is 0.1" in caught.value.found
