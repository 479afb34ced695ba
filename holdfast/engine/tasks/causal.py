"""Fine-tune a causal language model on instructions, chats or plain text, in full or with LoRA.

Texts are packed without padding, each with its own positions, and only the tokens flagged as targets (the answers) go
through the output layer. N tokens of a micro-batch, A of them targets, H hidden, V vocabulary.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional
from transformers import AutoTokenizer

from holdfast.core.errors import RequestError
from holdfast.core.prepared import Manifest
from holdfast.core.records import Mistakes
from holdfast.core.scores import SampleAnswer
from holdfast.data.shards import require_manifest
from holdfast.engine.answer_texts import AnswerTexts
from holdfast.engine.attempt_settings import AttemptSettings
from holdfast.engine.batches import BatchPart, first_example, split_step
from holdfast.engine.data_order import Indices, step_seed
from holdfast.engine.fast.captured import row_pack, step_row
from holdfast.engine.fast.packing import Pack, pack, packed
from holdfast.engine.fast.rng import DropoutRng, replace_dropout
from holdfast.engine.language_model import load_language_model, plain_model
from holdfast.engine.ranks import ALONE, Ranks
from holdfast.engine.row_layout import round_up
from holdfast.engine.samples import ready_to_answer, sample_answer
from holdfast.engine.sharding import as_one_call, make_gradient_threads

_OPTIONS = ("lora", "samples")
_SAMPLES = 3
_LEARNED_BUCKET = 256  # a captured step has a multiple of this many targets; surplus ones count nothing
_LOGITS_AT_ONCE = 1024  # rows of vocabulary size: 200 MB with 49,152 tokens, instead of gigabytes


def load(settings: AttemptSettings, ranks: Ranks = ALONE) -> "Causal":
    """Load the model, with adapters if requested, and open the prepared texts."""
    if unknown := sorted(set(settings.options) - set(_OPTIONS)):
        raise RequestError(
            f"unknown causal option: {', '.join(map(repr, unknown))}", found=f"options: {', '.join(_OPTIONS)}"
        )
    manifest = require_manifest(settings.prepared_path)
    if settings.is_on_cuda:
        torch.use_deterministic_algorithms(True)
    return Causal(settings, *load_language_model(settings), manifest, ranks)


class Causal:
    """A language model in training."""

    metric = "negative_loss"
    needs_collectives = False

    def __init__(
        self,
        settings: AttemptSettings,
        model: nn.Module,
        offset: int | None,
        manifest: Manifest,
        ranks: Ranks = ALONE,
    ):
        self._settings, self.model, self._ranks = settings, model, ranks
        self.is_packed, self._offset = offset is not None, offset or 0
        # A model that cannot be packed takes one text at a time, which does not change what is learned.
        self._micro_tokens = settings.micro_tokens if self.is_packed else 1
        self._rng = None if settings.uses_device_rng else DropoutRng(settings.seed)
        if self._rng:
            replace_dropout(model, self._rng)
        plain = plain_model(model)
        self._threads = make_gradient_threads(model, settings.worker_threads if self.is_packed else 1, ranks, [plain])
        self._compute: Callable[[Pack, Tensor, Tensor], Tensor] = self._loss_at
        if ranks.in_lockstep:
            self._compute = as_one_call(plain, self._loss_at)
        self._plain, self._body, self._head = plain, plain.base_model, plain.get_output_embeddings()
        self._chat_template = manifest.chat_template
        self._data = AnswerTexts(settings, manifest)
        self._texts, self.lengths = self._data.texts, self._data.lengths
        self._threads.try_out(first_example(), lambda part: self._loss_of(0, part, 1))

    def begin_epoch(self, epoch: int) -> dict[str, int]:
        """Nothing depends on the epoch."""
        return {}

    def forward_backward(self, step: int, examples: Indices) -> Tensor:
        """Add the gradient of one step: the mean over all its target tokens, however they are split."""
        self.model.train()
        learned = self._data.learned(examples)
        step_loss = torch.zeros((), device=self._settings.device)
        for parts in split_step(examples, self.lengths, self._micro_tokens, self._threads.workers, self._ranks):
            step_loss += self._threads.backward(parts, lambda part: self._loss_of(step, part, learned))
        return step_loss

    def step_arrays(self, step: int, examples: Indices) -> dict[str, NDArray[np.int64]] | None:
        """One step for `fast.captured`; None where it is too large to compute at once."""
        ordered = examples[np.argsort(self.lengths[examples], kind="stable")]
        if self.lengths[ordered].sum() > self._micro_tokens:
            return None
        targets_N = self._targets("train", ordered)
        at_A = np.flatnonzero(targets_N >= 0)
        idle = -len(at_A) % _LEARNED_BUCKET
        return {
            **step_row([self._texts["train"][int(at)] for at in ordered], self._offset),
            "at": np.pad(at_A, (0, idle)),
            "targets": np.pad(targets_N[at_A], (0, idle), constant_values=-1),
        }

    def step_loss(self, arrays: Mapping[str, Tensor]) -> Tensor:
        """The loss of those arrays, which are on the GPU."""
        texts, targets_A = row_pack(arrays, int(self.lengths.max())), arrays["targets"]
        with packed(texts):
            return self._loss_at(texts, arrays["at"], targets_A) / (targets_A >= 0).sum().clamp(min=1)

    @torch.no_grad()
    def evaluate(self, split: str) -> dict[str, float]:
        """Loss and perplexity on the target tokens of a split; empty if the split does not exist."""
        if split not in self._texts:
            return {}
        return self._data.evaluate(split, self._micro_tokens, self._summed_losses)

    def _summed_losses(self, split: str, batches: list[Indices]) -> NDArray[np.float64]:
        """Summed loss and target tokens of each batch of texts."""
        self.model.eval()
        micros = list(enumerate(batches))
        found = torch.zeros(len(micros), 2, dtype=torch.float64)

        def score() -> None:
            for (at, micro), counts in self._ranks.own_share(micros):
                row, targets_N = self._pack(split, micro)
                with packed(row):
                    loss = float(self._summed_loss(row, targets_N))
                if counts:
                    found[at] = torch.tensor([loss, int((targets_N >= 0).sum())])

        self._ranks.independently(score)
        return self._ranks.all_reduce(found).numpy()

    def samples(self) -> list[SampleAnswer]:
        """The model's answers to the first validation prompts, next to the expected ones."""
        if not (self._ranks.is_first or self._ranks.in_lockstep):
            return []  # the first rank writes them
        split = "validation" if "validation" in self._texts else "train"
        count = min(int(str(self._settings.options.get("samples", _SAMPLES))), len(self._texts[split]))
        tokenizer = AutoTokenizer.from_pretrained(self._settings.model)
        with ready_to_answer(self.model), self._settings.autocast():
            return [
                sample_answer(
                    self.model, tokenizer, self._texts[split][at], self._data.flags(split, at), self._settings.device
                )
                for at in range(count)
            ]

    def report(self, split: str) -> dict[str, object]:
        """Metrics with their intervals, and answers to a few prompts."""
        if split not in self._texts:
            return {}
        found = self._data.measured(split, self._micro_tokens, self._summed_losses)
        return found | {"samples": self.samples()} if split == "validation" else found

    def mistakes(self, split: str) -> Mistakes:
        """Empty: an answer is not simply wrong. See `samples`."""
        return Mistakes(split=split)

    def state(self) -> dict[str, Tensor]:
        """The trained weights; with LoRA only the adapters."""
        return {name: weight for name, weight in self.model.named_parameters() if weight.requires_grad}

    def load_state(self, tensors: dict[str, Tensor]) -> None:
        """Restore what `state` returned."""
        for name, weight in self.state().items():
            weight.data.copy_(tensors.pop(name))
        if tensors:
            raise ValueError(f"the checkpoint has weights that this model lacks: {sorted(tensors)[:3]}")

    def show(self, examples: Indices) -> object:
        """The texts' tokens, and which of them are targets."""
        return self._data.show(examples)

    def export(self, folder: Path) -> None:
        """Write a model that transformers loads; with LoRA also the adapters, as peft writes them."""
        model: Any = self.model
        if model is not self._plain:
            model.save_pretrained(folder / "adapter")
            model = model.float().merge_and_unload()
        model.save_pretrained(folder)
        tokenizer = AutoTokenizer.from_pretrained(self._settings.model)
        if self._chat_template:
            tokenizer.chat_template = self._chat_template  # the template that rendered the training texts
        tokenizer.save_pretrained(folder)

    def _pack(self, split: str, examples: Indices) -> tuple[Pack, NDArray[np.int64]]:
        """Packed texts, and for each of their tokens its target, or -1."""
        return pack(self._texts[split], examples, self._settings.device, self._offset), self._targets(split, examples)

    def _targets(self, split: str, examples: Indices) -> NDArray[np.int64]:
        return np.concatenate([self._data.targets(split, int(at)) for at in examples])

    def _summed_loss(self, texts: Pack, targets_N: NDArray[np.int64]) -> Tensor:
        at_A, device = np.flatnonzero(targets_N >= 0), self._settings.device
        targets_A = targets_N[at_A]
        if texts.places_N is not None:
            idle = round_up(len(at_A), _LEARNED_BUCKET) - len(at_A)
            at_A = np.pad(texts.places_N[at_A], (0, idle))
            targets_A = np.pad(targets_A, (0, idle), constant_values=-1)
        return self._compute(texts, torch.from_numpy(at_A).to(device), torch.from_numpy(targets_A).to(device))

    def _loss_at(self, texts: Pack, at_A: Tensor, targets_A: Tensor) -> Tensor:
        """The summed loss of the targets at these positions; -1 counts nothing."""
        with self._settings.autocast():
            places = {"position_ids": texts.positions_RT} if self.is_packed else {}
            hidden_NH = self._body(input_ids=texts.ids_RT, **places, use_cache=False)[0].flatten(0, 1)
            hidden_AH = hidden_NH[at_A]
            loss = torch.zeros((), device=hidden_AH.device)
            for part_AH, part_A in zip(hidden_AH.split(_LOGITS_AT_ONCE), targets_A.split(_LOGITS_AT_ONCE), strict=True):
                logits_AV = self._head(part_AH).float()
                loss = loss + functional.cross_entropy(logits_AV, part_A, reduction="sum", ignore_index=-1)
        return loss

    @contextmanager
    def _loss_of(self, step: int, part: BatchPart, learned: int) -> Iterator[Tensor]:
        """A part's share of the step's loss. The texts stay packed until its backward pass is done."""
        if self._rng:
            self._rng.at_part(step, part.places, part.first_tokens, self.lengths[part.examples])
        if self._threads.workers == 1:  # the model may draw from torch's own generator
            torch.manual_seed(step_seed(self._settings.seed, step) + int(part.places[0]))
        texts, targets_N = self._pack("train", part.examples)
        with packed(texts, self._rng):
            yield self._summed_loss(texts, targets_N) / (math.inf if part.is_idle else learned)
