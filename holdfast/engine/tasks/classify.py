"""Fine-tune an encoder to classify texts, with one label each or any number.

B texts of a micro-batch, L labels.
"""

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from holdfast.core.runfolder import MANIFEST
from holdfast.data.shards import TokenArray, open_array, open_tokens
from holdfast.engine.batches import micro_batches
from holdfast.engine.captured import bucket
from holdfast.engine.draws import Draws, replace_dropout
from holdfast.engine.last_layer import narrow_last_layer
from holdfast.engine.metrics import multi_label_metrics, single_label_metrics
from holdfast.engine.order import Indices, step_seed
from holdfast.engine.packing import ATTENTION, Pack, pack, pack_base, packed
from holdfast.engine.settings import Settings
from holdfast.engine.vocabulary import keep_used_rows


def load(settings: Settings) -> "Classify":
    """Load the encoder with a fresh head, and open the prepared texts."""
    manifest = json.loads((settings.prepared_path / MANIFEST).read_text(encoding="utf-8"))
    labels: list[str] = manifest["labels"]
    torch.manual_seed(settings.seed)  # for the new head
    model = AutoModelForSequenceClassification.from_pretrained(
        settings.model,
        num_labels=len(labels),
        id2label=dict(enumerate(labels)),
        label2id={label: at for at, label in enumerate(labels)},
        problem_type="multi_label_classification" if manifest["multi_label"] else "single_label_classification",
        attn_implementation=ATTENTION,
        dtype=torch.float32,
    )
    if settings.compile:
        for layer in model.base_model.encoder.layer[:-1]:
            layer.compile(dynamic=True)
    return Classify(settings, model.to(settings.device), manifest)


class Classify:
    """A classifier in training."""

    def __init__(self, settings: Settings, model: torch.nn.Module, manifest: dict[str, object]):
        self._settings, self._manifest, self.model = settings, manifest, model
        self._is_multi = bool(manifest["multi_label"])
        self.metric = "micro_f1" if self._is_multi else "accuracy"
        self._draws = None if settings.is_on_card else Draws(settings.seed)
        if self._draws:
            replace_dropout(model, self._draws)
        pack_base(model, is_narrow=narrow_last_layer(model.base_model))
        folder = settings.prepared_path
        self._texts: dict[str, TokenArray] = {}
        self._labels: dict[str, NDArray[np.generic]] = {}
        for split in manifest["splits"]:  # type: ignore[attr-defined]
            self._texts[split] = open_tokens(folder, split)
            self._labels[split] = open_array(folder, f"{split}.labels")
        self.lengths = self._texts["train"].lengths
        self._rows = keep_used_rows(model, [texts.tokens for texts in self._texts.values()])
        weights = settings.options.get("class_weights")
        self._class_weights = torch.tensor(weights, device=settings.device) if weights else None

    def begin_epoch(self, epoch: int) -> dict[str, object]:
        """Nothing depends on the epoch."""
        return {}

    def forward_backward(self, step: int, examples: Indices) -> Tensor:
        """Add the gradient of one step: the mean over all its texts, however they are split."""
        self.model.train()
        whole = self._weight_of(examples)
        step_loss = torch.zeros((), device=self._settings.device)
        first_token, first_example = 0, 0
        if not self._draws:
            torch.manual_seed(step_seed(self._settings.seed, step))
        for micro in micro_batches(examples, self.lengths, self._settings.micro_tokens):
            if self._draws:
                self._draws.at(step, first_token, first_example)
            loss = self._summed_loss(self._logits("train", micro), micro) / whole
            loss.backward()
            step_loss += loss.detach()
            first_token += int(self.lengths[micro].sum())
            first_example += len(micro)
        return step_loss

    def step_arrays(self, examples: Indices) -> dict[str, NDArray[np.int64]]:
        """One step for `engine.captured`: all texts in a row, filled up to a bucket by one text that nobody reads."""
        ordered = np.concatenate(list(micro_batches(examples, self.lengths, self._settings.micro_tokens)))
        lengths = self.lengths[ordered]
        tokens = int(lengths.sum())
        filler = bucket(tokens) - tokens
        bounds = np.concatenate([[0], np.cumsum(lengths), [tokens + filler]])
        ids = np.concatenate([self._texts["train"][int(at)] for at in ordered])
        ids = ids.astype(np.int64) if self._rows is None else self._rows.new_ids[ids]
        positions = np.arange(tokens) - np.repeat(bounds[:-2], lengths)
        return {
            "ids": np.pad(ids, (0, filler)),
            "positions": np.concatenate([positions, np.arange(filler) % int(lengths.max())]),
            "bounds": bounds,
            "labels": np.asarray(self._labels["train"][ordered]).astype(np.int64).reshape(-1),
        }

    def step_loss(self, arrays: Mapping[str, Tensor]) -> Tensor:
        """The loss of those arrays, which lie on the card."""
        bounds = arrays["bounds"]
        size = len(bounds) - 2
        longest = max(int(self.lengths.max()), bucket(1))
        texts = Pack(arrays["ids"][None], arrays["positions"][None], [], bounds[:size], bounds.int(), longest)
        logits_BL = self._packed_logits(texts)
        if self._is_multi:
            truth_BL = arrays["labels"].view(size, -1).float()
            return functional.binary_cross_entropy_with_logits(logits_BL, truth_BL)
        return functional.cross_entropy(logits_BL, arrays["labels"], weight=self._class_weights)

    @torch.no_grad()
    def evaluate(self, split: str) -> dict[str, float]:
        """Metrics on a split; empty where there is no such split."""
        if split not in self._texts:
            return {}
        logits_BL = self.predict(split)
        truth = np.asarray(self._labels[split])
        return multi_label_metrics(logits_BL, truth) if self._is_multi else single_label_metrics(logits_BL, truth)

    @torch.no_grad()
    def predict(self, split: str) -> NDArray[np.float64]:
        """The model's scores for every text of a split, in the split's order."""
        self.model.eval()
        texts = self._texts[split]
        found = np.zeros((len(texts), len(self._manifest["labels"])))  # type: ignore[arg-type]
        for micro in micro_batches(np.arange(len(texts)), texts.lengths, self._settings.micro_tokens):
            found[micro] = self._logits(split, micro).float().cpu().numpy()
        return found

    def state(self) -> dict[str, Tensor]:
        """All weights: every one is trained."""
        return dict(self.model.state_dict())

    def load_state(self, tensors: dict[str, Tensor]) -> None:
        """Put them back."""
        self.model.load_state_dict(tensors)

    def show(self, examples: Indices) -> object:
        """The texts' tokens and labels."""
        texts, labels = self._texts["train"], self._labels["train"]
        return [
            {"example": int(at), "tokens": texts[int(at)].tolist(), "label": labels[at].tolist()} for at in examples
        ]

    def export(self, folder: Path) -> None:
        """Write the model and its tokenizer as transformers does."""
        if self._rows:
            self._rows.restore()
        self.model.save_pretrained(folder)  # type: ignore[operator]
        AutoTokenizer.from_pretrained(self._settings.model).save_pretrained(folder)

    def _logits(self, split: str, examples: Indices) -> Tensor:
        new_ids = self._rows.new_ids if self._rows else None
        texts = pack(self._texts[split], examples, self._settings.device, new_ids=new_ids)
        return self._packed_logits(texts)

    def _packed_logits(self, texts: Pack) -> Tensor:
        with packed(texts, self._draws), self._settings.autocast():
            logits_BL: Tensor = self.model(input_ids=texts.ids_1N, position_ids=texts.positions_1N).logits
        return logits_BL.float()

    def _summed_loss(self, logits_BL: Tensor, examples: Indices) -> Tensor:
        truth = torch.from_numpy(np.asarray(self._labels["train"][examples])).to(logits_BL.device)
        if self._is_multi:
            return functional.binary_cross_entropy_with_logits(logits_BL, truth, reduction="sum") / logits_BL.shape[1]
        return functional.cross_entropy(logits_BL, truth, weight=self._class_weights, reduction="sum")

    def _weight_of(self, examples: Indices) -> float:
        """What the step's loss is divided by: its texts, each counted with its class's weight."""
        if self._class_weights is None:
            return float(len(examples))
        return float(self._class_weights.cpu().numpy()[self._labels["train"][examples]].sum())
