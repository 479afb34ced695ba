"""Fine-tune a causal language model on instructions, chats or plain text, in full or with LoRA.

Texts are packed without padding, each with positions of its own, and only the tokens flagged to be learned (the
answers) go through the vocabulary. N tokens of a micro-batch, A of them to be learned, H hidden, V vocabulary.
"""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional
from transformers import AutoModelForCausalLM, AutoTokenizer

from holdfast.core.errors import RequestError
from holdfast.core.runfolder import MANIFEST
from holdfast.data.shards import TokenArray, open_array, open_tokens
from holdfast.engine.batches import micro_batches
from holdfast.engine.draws import Draws, replace_dropout
from holdfast.engine.order import Indices
from holdfast.engine.packing import ATTENTION, Pack, pack, packed
from holdfast.engine.settings import Settings

_LOGITS_AT_ONCE = 1024  # rows of vocabulary size: 200 MB at 49,152 tokens, in place of gigabytes


def load(settings: Settings) -> "Causal":
    """Load the model, with adapters where asked, and open the prepared texts."""
    manifest = json.loads((settings.prepared_path / MANIFEST).read_text(encoding="utf-8"))
    torch.manual_seed(settings.seed)  # for the adapters
    model: Any = AutoModelForCausalLM.from_pretrained(
        settings.model, attn_implementation=ATTENTION, dtype=torch.float32, use_safetensors=True
    )
    if lora := settings.options.get("lora"):
        model = _with_adapters(model, dict(lora))  # type: ignore[call-overload]
    if settings.gradient_checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    return Causal(settings, model.to(settings.device), manifest)


class Causal:
    """A language model in training."""

    metric = "negative_loss"

    def __init__(self, settings: Settings, model: nn.Module, manifest: dict[str, Any]):
        self._settings, self.model = settings, model
        self._draws = Draws(settings.seed)
        replace_dropout(model, self._draws)
        plain: Any = model.get_base_model() if hasattr(model, "get_base_model") else model  # type: ignore[operator]
        self._plain, self._body, self._head = plain, plain.base_model, plain.get_output_embeddings()
        folder = settings.prepared_path
        self._texts: dict[str, TokenArray] = {split: open_tokens(folder, split) for split in manifest["splits"]}
        self._learn: dict[str, NDArray[Any]] = {
            split: open_array(folder, f"{split}.learn") for split in manifest["splits"]
        }
        self.lengths = self._texts["train"].lengths
        self._refuse_if_nothing_is_learned()

    def begin_epoch(self, epoch: int) -> dict[str, object]:
        """Nothing depends on the epoch."""
        return {}

    def forward_backward(self, step: int, examples: Indices) -> Tensor:
        """Add the gradient of one step: the mean over all its learned tokens, however they are split."""
        self.model.train()
        learned = sum(int(self._flags("train", int(at)).sum()) for at in examples)
        step_loss = torch.zeros((), device=self._settings.device)
        first_token, first_example = 0, 0
        for micro in micro_batches(examples, self.lengths, self._settings.micro_tokens):
            self._draws.at(step, first_token, first_example)
            texts, targets_N = self._pack("train", micro)
            with packed(texts, self._draws):  # also for the backward pass, which may compute layers again
                loss = self._summed_loss(texts, targets_N) / max(1, learned)
                loss.backward()
            step_loss += loss.detach()
            first_token += len(targets_N)
            first_example += len(micro)
        return step_loss

    @torch.no_grad()
    def evaluate(self, split: str) -> dict[str, float]:
        """Loss and perplexity on the learned tokens of a split; empty where there is no such split."""
        if split not in self._texts:
            return {}
        self.model.eval()
        total, learned = 0.0, 0
        texts = self._texts[split]
        for micro in micro_batches(np.arange(len(texts)), texts.lengths, self._settings.micro_tokens):
            row, targets_N = self._pack(split, micro)
            with packed(row):
                total += float(self._summed_loss(row, targets_N))
            learned += int((targets_N >= 0).sum())
        loss = total / max(1, learned)
        return {"loss": loss, "negative_loss": -loss, "perplexity": math.exp(min(loss, 50.0))}

    @torch.no_grad()
    def samples(self, count: int = 3, new_tokens: int = 60) -> list[dict[str, object]]:
        """What the model answers to the first validation prompts, beside what was wanted."""
        split = "validation" if "validation" in self._texts else "train"
        tokenizer = AutoTokenizer.from_pretrained(self._settings.model)
        self.model.eval()
        self._plain.set_attn_implementation("sdpa")
        found: list[dict[str, object]] = []
        for at in range(min(count, len(self._texts[split]))):
            text, learn = self._texts[split][at], self._flags(split, at)
            prompt = torch.from_numpy(text[: int(learn.argmax())].astype(np.int64))[None].to(self._settings.device)
            answer = self.model.generate(prompt, max_new_tokens=new_tokens, do_sample=False)  # type: ignore[operator]
            found.append(
                {
                    "prompt": tokenizer.decode(prompt[0]),
                    "answer": tokenizer.decode(answer[0, prompt.shape[1] :], skip_special_tokens=True),
                    "wanted": tokenizer.decode(text[learn > 0], skip_special_tokens=True),
                }
            )
        self._plain.set_attn_implementation(ATTENTION)
        return found

    def report(self, split: str) -> dict[str, object]:
        """What is worth keeping of the finished model: metrics, and what it answers to a few prompts."""
        found: dict[str, object] = dict(self.evaluate(split))
        return found | {"samples": self.samples()} if found and split == "validation" else found

    def misjudged(self, split: str) -> list[dict[str, object]]:
        """No answer is simply wrong; `samples` shows some."""
        return []

    def state(self) -> dict[str, Tensor]:
        """The weights that are trained; with LoRA the adapters alone."""
        return {name: weight for name, weight in self.model.named_parameters() if weight.requires_grad}

    def load_state(self, tensors: dict[str, Tensor]) -> None:
        """Put them back."""
        for name, weight in self.state().items():
            weight.data.copy_(tensors.pop(name))
        if tensors:
            raise ValueError(f"the checkpoint has weights that this model has not: {sorted(tensors)[:3]}")

    def show(self, examples: Indices) -> object:
        """The texts' tokens, and which of them are learned."""
        texts = self._texts["train"]
        return [
            {"example": int(at), "tokens": texts[int(at)].tolist(), "learn": self._flags("train", int(at)).tolist()}
            for at in examples
        ]

    def export(self, folder: Path) -> None:
        """Write a plain model that transformers loads; the adapters also by themselves, as peft writes them."""
        model: Any = self.model
        if model is not self._plain:
            model.save_pretrained(folder / "adapter")
            model = model.merge_and_unload()
        model.save_pretrained(folder)
        AutoTokenizer.from_pretrained(self._settings.model).save_pretrained(folder)

    def _pack(self, split: str, examples: Indices) -> tuple[Pack, Tensor]:
        """Texts in one row, and for each position the token to be learned there, or -1."""
        texts = self._texts[split]
        targets = []
        for at in examples:
            text, learn = texts[int(at)].astype(np.int64), self._flags(split, int(at))
            targets.append(np.append(np.where(learn[1:] > 0, text[1:], -1), -1))  # a position learns what comes next
        row = pack(texts, examples, self._settings.device)
        return row, torch.from_numpy(np.concatenate(targets)).to(self._settings.device)

    def _summed_loss(self, texts: Pack, targets_N: Tensor) -> Tensor:
        hidden_NH = self._body(input_ids=texts.ids_1N, position_ids=texts.positions_1N, use_cache=False)[0][0]
        at_A = torch.nonzero(targets_N >= 0)[:, 0]
        hidden_AH, targets_A = hidden_NH[at_A], targets_N[at_A]
        loss: Tensor = hidden_AH.new_zeros(())
        for part_AH, part_A in zip(hidden_AH.split(_LOGITS_AT_ONCE), targets_A.split(_LOGITS_AT_ONCE), strict=True):
            loss = loss + functional.cross_entropy(self._head(part_AH).float(), part_A, reduction="sum")
        return loss

    def _flags(self, split: str, at: int) -> NDArray[Any]:
        starts = self._texts[split].starts
        return self._learn[split][starts[at] : starts[at + 1]]

    def _refuse_if_nothing_is_learned(self) -> None:
        if not self._learn["train"].any():
            raise RequestError(
                "nothing would be learned: no token of the training texts is part of an answer",
                seen=f"{len(self.lengths)} texts, {int(self.lengths.sum())} tokens, 0 of them to be learned",
                try_next=("raise --max-length so that answers are not cut off, or check the answer column",),
            )


def _with_adapters(model: Any, lora: dict[str, Any]) -> Any:
    from peft import LoraConfig, get_peft_model

    try:
        return get_peft_model(model, LoraConfig(task_type="CAUSAL_LM", **lora))
    except ValueError as error:
        layers = sorted(
            {name.rsplit(".", 1)[-1] for name, part in model.named_modules() if isinstance(part, nn.Linear)}
        )
        raise RequestError(
            "the LoRA settings do not fit this model",
            seen=f"{error}; its linear layers are {', '.join(layers)}",
            slug="peft-target-modules",
        ) from error
