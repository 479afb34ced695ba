"""Fine-tune a causal language model with MLX, in full, or with LoRA on frozen weights that may be in 4 bits.

Texts are packed into rows, and only the tokens flagged as targets (the answers) go through the output layer.

R rows, T tokens of a row, A target tokens, H hidden, V vocabulary.
"""

from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
from mlx.utils import tree_flatten, tree_unflatten
from numpy.typing import NDArray

from holdfast.core.artifacts import write_artifact
from holdfast.core.errors import RequestError, set_to
from holdfast.core.records import Mistakes
from holdfast.core.scores import SampleAnswer
from holdfast.data.shards import require_manifest
from holdfast.data.tokenizer import ModelTokenizer
from holdfast.engine.answer_texts import AnswerTexts
from holdfast.engine.attempt_settings import AttemptSettings
from holdfast.engine.batches import BatchPart, split_step
from holdfast.engine.data_order import Indices
from holdfast.engine.mlx.hf_folder import copy_tokenizer, write_model
from holdfast.engine.mlx.mlx_adamw import Weights
from holdfast.engine.mlx.mlx_answers import sample_answer
from holdfast.engine.mlx.mlx_classify import load_weights
from holdfast.engine.mlx.mlx_dropout import StepMasks
from holdfast.engine.mlx.mlx_language_model import LanguageModel, token_losses
from holdfast.engine.mlx.mlx_lora import Adapters, plain_weight
from holdfast.engine.mlx.text_rows import TextRows, bucket_of, pack_rows

_SAMPLES = 3
_LOGITS_AT_ONCE = 1024  # rows of vocabulary size: 200 MB with 49,152 tokens, instead of gigabytes


def load(settings: AttemptSettings) -> "MlxCausal":
    """Load the model, with adapters if requested, and open the prepared texts."""
    return MlxCausal(settings)


class MlxCausal:
    """A language model in training."""

    metric = "negative_loss"

    def __init__(self, settings: AttemptSettings):
        self._settings = settings
        manifest = require_manifest(settings.prepared_path)
        self._chat_template = manifest.chat_template
        self._data = AnswerTexts(settings, manifest)
        self.lengths = self._data.lengths
        self._model = LanguageModel(settings)
        self._model.require_windows(int(self.lengths.max()))
        self.is_packed = self._model.is_packed
        # A model that cannot be packed takes one text at a time, which does not change what is learned.
        self._micro_tokens = settings.micro_tokens if self.is_packed else 1
        lora: Any = settings.options.get("lora")
        if not lora and self._model.quantization:
            raise RequestError(
                "the weights of the base model are quantized, so they cannot be trained",
                try_next=(set_to("lora", True, note="trains adapters next to them"),),
                setting="lora",
            )
        self._adapters = Adapters(self._model.net, lora, settings.seed) if lora else None
        if self._adapters is None:
            self._model.net.unfreeze()
        self._is_half = settings.precision == "bf16"
        self.weights = self._adapters.weights if self._adapters else dict(tree_flatten(self._model.net.parameters()))

    def begin_epoch(self, epoch: int) -> dict[str, int]:
        """Nothing depends on the epoch."""
        return {}

    def loss_and_gradients(self, step: int, examples: Indices) -> tuple[mx.array, Weights]:
        """The loss of one step, the mean over all its target tokens, and its gradient."""
        learned = self._data.learned(examples)
        step_loss, total = mx.array(0.0), None
        for (part,) in split_step(examples, self.lengths, self._micro_tokens):
            rows, at_A, targets_A = self._pack("train", part)
            if self._adapters:
                self._adapters.now.masks = StepMasks(self._settings.seed, step, rows)
            loss, gradients = mx.value_and_grad(self._loss)(self.weights, rows, at_A, targets_A)
            gradients = {name: gradient / learned for name, gradient in gradients.items()}
            total = gradients if total is None else {name: total[name] + one for name, one in gradients.items()}
            step_loss = step_loss + loss / learned
            mx.eval(step_loss, total)
        assert total is not None
        return step_loss, total

    def evaluate(self, split: str) -> dict[str, float]:
        """Loss and perplexity on the target tokens of a split; empty if the split does not exist."""
        if split not in self._data.texts:
            return {}
        return self._data.evaluate(split, self._micro_tokens, self._summed_losses)

    def samples(self) -> list[SampleAnswer]:
        """The model's answers to the first validation prompts, next to the expected ones."""
        split = "validation" if "validation" in self._data.texts else "train"
        texts = self._data.texts[split]
        count = min(int(str(self._settings.options.get("samples", _SAMPLES))), len(texts))
        tokenizer = ModelTokenizer(Path(self._settings.model)).tokenizer
        self._rest()
        return [sample_answer(self._model, tokenizer, texts[at], self._data.flags(split, at)) for at in range(count)]

    def report(self, split: str) -> dict[str, object]:
        """Metrics with their intervals, and answers to a few prompts."""
        if split not in self._data.texts:
            return {}
        found = self._data.measured(split, self._micro_tokens, self._summed_losses)
        return found | {"samples": self.samples()} if split == "validation" else found

    def mistakes(self, split: str) -> Mistakes:
        """Empty: an answer is not simply wrong. See `samples`."""
        return Mistakes(split=split)

    def state(self) -> dict[str, Any]:
        """The trained weights; with LoRA only the adapters."""
        return dict(self.weights)

    def load_state(self, tensors: dict[str, Any]) -> None:
        """Restore what `state` returned."""
        load_weights(self.weights, tensors)

    def show(self, examples: Indices) -> object:
        """The texts' tokens, and which of them are targets."""
        return self._data.show(examples)

    def export(self, folder: Path) -> None:
        """Write a model that transformers and mlx-lm load, and the adapters for both.

        On a base in 4 bits the adapters are merged into the weights that those bits stand for, so the model computes
        what was trained; `mlx` holds the base in 4 bits and the adapters.
        """
        self._rest()
        net, config = self._model.net, {**self._model.config, "dtype": "float32"}
        config.pop("quantization", None)
        config.pop("quantization_config", None)
        plain = self._plain_weights()
        if self._adapters:
            self._adapters.write_peft(folder / "adapter", self._settings.model)
            self._adapters.write_mlx(folder / "adapter_mlx", len(net.layers))
        write_model(folder, self._model.folder, config, plain)
        if self._model.quantization and self._adapters:
            write_model(folder / "mlx", self._model.folder, self._model.config, self._base_weights())
            self._adapters.write_mlx(folder / "mlx" / "adapters", len(net.layers))
        if self._chat_template:
            self._write_template(folder)

    def _summed_losses(self, split: str, batches: list[Indices]) -> NDArray[np.float64]:
        """Summed loss and target tokens of each batch of texts."""
        self._rest()
        found = np.zeros((len(batches), 2))
        for at, batch in enumerate(batches):
            rows, at_A, targets_A = self._pack(split, BatchPart(batch, batch, batch))
            found[at] = self._summed_loss(rows, at_A, targets_A).item(), mx.sum(targets_A >= 0).item()
        return found

    def _loss(self, weights: Weights, rows: TextRows, at_A: mx.array, targets_A: mx.array) -> mx.array:
        self._install(weights)
        return self._summed_loss(rows, at_A, targets_A)

    def _install(self, weights: Weights) -> None:
        """Compute with these weights from here on."""
        if self._adapters:
            self._adapters.install(weights)
            return
        half = {name: weight.astype(mx.bfloat16) for name, weight in weights.items()} if self._is_half else weights
        self._model.net.update(tree_unflatten(list(half.items())))

    def _rest(self) -> None:
        """Compute with the current weights and without dropout: a gradient leaves its own values in the model."""
        if self._adapters:
            self._adapters.now.masks = None
        self._install(self.weights)

    def _summed_loss(self, rows: TextRows, at_A: mx.array, targets_A: mx.array) -> mx.array:
        """The summed loss of the targets at these places; -1 counts nothing."""
        states_AH, total = self._model.states(rows)[at_A], mx.array(0.0)

        def summed(states_AH: mx.array, targets_A: mx.array) -> mx.array:
            losses_A = token_losses(self._model.score(states_AH), mx.maximum(targets_A, 0))
            return mx.sum(mx.where(targets_A >= 0, losses_A, 0.0))

        for start in range(0, len(targets_A), _LOGITS_AT_ONCE):
            some = slice(start, start + _LOGITS_AT_ONCE)
            total = total + summed(states_AH[some], targets_A[some])
        return total

    def _pack(self, split: str, part: BatchPart) -> tuple[TextRows, mx.array, mx.array]:
        """Texts in rows, where the targets are in the flattened rows, and which they are."""
        texts = [self._data.texts[split][int(at)] for at in part.examples]
        rows = pack_rows(texts, part)
        first_B, places, targets = np.array(rows.first_B), [], []
        for at, example in enumerate(part.examples):
            wanted_T = self._data.targets(split, int(example))
            inside = np.flatnonzero(wanted_T >= 0)
            places.append(first_B[at] + inside)
            targets.append(wanted_T[inside])
        count = sum(map(len, targets))
        idle = (0, bucket_of(max(1, count)) - count)
        at_A, targets_A = (
            np.pad(np.concatenate(places), idle),
            np.pad(np.concatenate(targets), idle, constant_values=-1),
        )
        return rows, mx.array(at_A.astype(np.int32)), mx.array(targets_A.astype(np.int32))

    def _plain_weights(self) -> Weights:
        """The weights under the names of the model folder, in float32, with the adapters merged."""
        found: Weights = {}
        merged = self._adapters.layers if self._adapters else {}
        packed = {path for path, part in self._model.net.named_modules() if hasattr(part, "scales")}
        for path, part in self._model.net.named_modules():
            if path in merged:
                found[f"{path}.weight"] = merged[path].merged()
                if "bias" in merged[path].base:
                    found[f"{path}.bias"] = merged[path].base.bias.astype(mx.float32)
            elif path in packed:
                found[f"{path}.weight"] = plain_weight(part)
        inside = tuple(f"{path}." for path in merged)
        for name, weight in tree_flatten(self._model.net.parameters()):
            path, _, kind = name.rpartition(".")
            is_packed = path in packed and kind in ("weight", "scales", "biases")
            if not is_packed and not (inside and name.startswith(inside)):
                found[name] = weight.astype(mx.float32)
        return found

    def _base_weights(self) -> Weights:
        """The frozen weights as they are, under their own names."""
        found = tree_flatten(self._model.net.parameters())
        return {name.replace(".base.", "."): weight for name, weight in found if ".lora_" not in name}

    def _write_template(self, folder: Path) -> None:
        """Write the chat template that rendered the training texts."""
        for place in (folder, folder / "mlx"):
            if place.is_dir():
                copy_tokenizer(self._model.folder, place)
                own = dict(ModelTokenizer(place).own_config)
                own.pop("chat_template", None)
                write_artifact(place, "tokenizer_config.json", own)
                (place / "chat_template.jinja").write_text(self._chat_template, encoding="utf-8")
